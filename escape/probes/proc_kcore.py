"""Reads the kernel's memory."""

from lib import can_open

CLASS = "/proc"
INCIDENT = "/proc/kcore in containers before they masked it"
BLOCKED_BY = "user namespace"
NEEDS = "/proc/kcore"


def attempt(facts):
    return can_open("/proc/kcore")
