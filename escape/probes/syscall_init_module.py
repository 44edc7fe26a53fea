"""Loads a kernel module from memory."""

from lib import reached

CLASS = "system calls"
INCIDENT = "privileged containers, by design"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("init_module", 0, 0, 0)
