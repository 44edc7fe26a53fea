"""Learns the handle that open_by_handle_at takes."""

from lib import reached

CLASS = "system calls"
INCIDENT = "shocker.c, 2014"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("name_to_handle_at", -100, b"/usr\0", 0, 0, 0)
