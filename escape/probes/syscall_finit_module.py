"""Loads a kernel module from a file."""

from lib import reached

CLASS = "system calls"
INCIDENT = "privileged containers, by design"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("finit_module", -1, 0, 0)
