"""Asks for real-time disk access."""

from lib import call

CLASS = "system calls"
INCIDENT = "one process with real-time input and output starves the disk"
BLOCKED_BY = "capabilities"


def attempt(facts):
    call("ioprio_set", 1, 0, (1 << 13) | 4)
    return "has real-time disk access"
