"""Reads another sandbox's POSIX shared memory."""

from lib import can_open

CLASS = "neighbours"
INCIDENT = "containers that share /dev/shm"
BLOCKED_BY = "private file systems"


def neighbour(facts):
    with open("/dev/shm/belljar-escape-neighbour", "w") as file:
        file.write("secret")


def attempt(facts):
    return can_open("/dev/shm/belljar-escape-neighbour")
