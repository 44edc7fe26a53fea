"""Names a program that the kernel starts, as root outside, when something crashes."""

from lib import can_write

CLASS = "/proc"
INCIDENT = "the shortest way out of a privileged container"
BLOCKED_BY = "user namespace"


def attempt(facts):
    return can_write("/proc/sys/kernel/core_pattern")
