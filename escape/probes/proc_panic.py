"""Makes the machine stop at the next warning."""

from lib import can_write

CLASS = "/proc"
INCIDENT = "/proc/sys/kernel is not in any namespace"
BLOCKED_BY = "user namespace"


def attempt(facts):
    return can_write("/proc/sys/kernel/panic_on_warn")
