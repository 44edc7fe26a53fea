"""Names the program that loads modules."""

from lib import can_write

CLASS = "/proc"
INCIDENT = "the last step of most kernel exploits"
BLOCKED_BY = "user namespace"
NEEDS = "loadable modules"


def attempt(facts):
    return can_write("/proc/sys/kernel/modprobe")
