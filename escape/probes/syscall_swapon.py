"""Adds swap space, which reads and writes any file's blocks."""

from lib import reached

CLASS = "system calls"
INCIDENT = "privileged containers, by design"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("swapon", b"/nowhere\0", 0)
