"""Asks about a file system by its device number, whether it is in this mount namespace or not."""

from lib import reached

CLASS = "system calls"
INCIDENT = "not bound to any namespace"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("ustat", 0, 0)
