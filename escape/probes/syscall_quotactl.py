"""Changes disk quotas of the host."""

from lib import reached

CLASS = "system calls"
INCIDENT = "quotactl(2) works on the device below, not on the mount"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("quotactl", 0, b"/nowhere\0", 0, 0)
