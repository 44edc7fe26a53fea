"""Registers an interpreter for files of its own making."""

from lib import can_write

CLASS = "/proc"
INCIDENT = "binfmt_misc is shared unless it is namespaced"
BLOCKED_BY = "user namespace"
NEEDS = "binfmt_misc mounted in /proc"


def attempt(facts):
    return can_write("/proc/sys/fs/binfmt_misc/register")
