"""Reads the kernel's messages."""

from lib import can_open

CLASS = "/proc"
INCIDENT = "kernel addresses in messages"
BLOCKED_BY = "user namespace"


def attempt(facts):
    return can_open("/proc/kmsg")
