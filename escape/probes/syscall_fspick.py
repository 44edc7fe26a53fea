"""Reopens a mounted file system to change its options."""

from lib import reached

CLASS = "system calls"
INCIDENT = "filters that knew mount(2) alone"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("fspick", -100, b"/usr\0", 0)
