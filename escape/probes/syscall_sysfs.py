"""Lists the kernel's file systems with a call nobody needs."""

from lib import reached

CLASS = "system calls"
INCIDENT = "the less is reachable, the less can break"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("sysfs", 3, 0, 0)
