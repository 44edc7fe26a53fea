"""Reads and slews the machine's clock."""

from lib import reached

CLASS = "system calls"
INCIDENT = "the clock is not in any namespace"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("adjtimex", 0)
