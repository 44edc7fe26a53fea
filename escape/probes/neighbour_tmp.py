"""Reads a file in another sandbox's /tmp."""

from lib import can_open

CLASS = "neighbours"
INCIDENT = "a /tmp that was shared"
BLOCKED_BY = "private file systems"


def neighbour(facts):
    with open("/tmp/belljar-escape-neighbour", "w") as file:
        file.write("secret")


def attempt(facts):
    return can_open("/tmp/belljar-escape-neighbour")
