"""Unloads a kernel module."""

from lib import reached

CLASS = "system calls"
INCIDENT = "privileged containers, by design"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("delete_module", b"belljar_no_such_module\0", 0)
