"""The same by a descriptor."""

from lib import reached

CLASS = "system calls"
INCIDENT = "filters that knew quotactl(2) alone"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("quotactl_fd", -1, 0, 0, 0)
