"""Moves another process's memory between nodes."""

from lib import reached

CLASS = "system calls"
INCIDENT = "a sibling of move_pages(2)"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("migrate_pages", 0, 0, 0, 0)
