"""Asks for a single port."""

from lib import reached

CLASS = "system calls"
INCIDENT = "direct access to hardware"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("ioperm", 0x80, 1, 0)
