"""Registers an interpreter for files of its own making."""

from lib import can_write

CLASS = "/proc"
INCIDENT = "binfmt_misc is shared unless it is namespaced"
BLOCKED_BY = "a /proc of its own, in which it is not mounted"
NEEDS = "binfmt_misc"
OUTSIDE = "namespace"
PLANT = "binfmt_misc"


def attempt(facts):
    return can_write("/proc/sys/fs/binfmt_misc/register")
