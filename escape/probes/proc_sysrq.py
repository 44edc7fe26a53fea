"""Presses a magic key."""

from lib import can_write

CLASS = "/proc"
INCIDENT = "a container could restart the machine"
BLOCKED_BY = "user namespace"
NEEDS = "/proc/sysrq-trigger"


def attempt(facts):
    return can_write("/proc/sysrq-trigger")
