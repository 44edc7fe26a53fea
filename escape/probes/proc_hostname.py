"""Renames the machine through /proc."""

from lib import can_write

CLASS = "/proc"
INCIDENT = "/proc/sys/kernel/hostname in a shared namespace"
BLOCKED_BY = "user namespace"


def attempt(facts):
    return can_write("/proc/sys/kernel/hostname")
