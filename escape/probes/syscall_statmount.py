"""Lists mounts without /proc."""

from lib import reached

CLASS = "system calls"
INCIDENT = "filters older than the call"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("statmount", 0, 0, 0, 0)
