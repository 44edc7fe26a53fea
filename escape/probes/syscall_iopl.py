"""Asks for the processor's input and output ports."""

from lib import reached

CLASS = "system calls"
INCIDENT = "direct access to hardware"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("iopl", 0)
