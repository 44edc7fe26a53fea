"""Takes a descriptor out of another process."""

from lib import reached

CLASS = "system calls"
INCIDENT = "descriptors of the supervisor were taken from a process of the same user"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("pidfd_getfd", -1, 0, 0)
