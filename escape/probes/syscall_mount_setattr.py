"""Clears the read-only flag of a mount."""

from lib import reached

CLASS = "system calls"
INCIDENT = "a read-only volume was remounted from inside the sandbox"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("mount_setattr", -100, b"/usr\0", 0, 0, 0)
