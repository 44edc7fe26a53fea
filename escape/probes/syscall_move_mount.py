"""Moves a mount with the newer interface."""

from lib import reached

CLASS = "system calls"
INCIDENT = "filters that knew mount(2) alone"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("move_mount", -100, b"/nowhere\0", -100, b"/tmp\0", 0)
