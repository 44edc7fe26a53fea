"""Reads the host's password hashes."""

from lib import can_open

CLASS = "file system"
INCIDENT = "a container that shares /etc"
BLOCKED_BY = "root directory"


def attempt(facts):
    return can_open("/etc/shadow")
