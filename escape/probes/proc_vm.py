"""Changes how the machine uses memory."""

from lib import can_write

CLASS = "/proc"
INCIDENT = "/proc/sys/vm is not in any namespace"
BLOCKED_BY = "user namespace"


def attempt(facts):
    return can_write("/proc/sys/vm/overcommit_memory")
