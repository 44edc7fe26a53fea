"""Reads the host's POSIX shared memory."""

from lib import holds_secret

CLASS = "the host"
INCIDENT = "containers that share /dev/shm"
BLOCKED_BY = "private file systems"


def attempt(facts):
    return holds_secret("/dev/shm/" + facts["dev_shm"], facts)
