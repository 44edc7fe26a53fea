"""Clones a mount with the newer interface."""

from lib import reached

CLASS = "system calls"
INCIDENT = "filters that knew mount(2) alone"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("open_tree", -100, b"/usr\0", 1)
