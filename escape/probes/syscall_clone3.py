"""The same with clone3, whose flags a filter cannot see."""

import ctypes
import os

from lib import call

CLASS = "system calls"
INCIDENT = "filters that looked at the flags of clone(2) alone"
BLOCKED_BY = "seccomp, which says that there is no clone3"
OUTSIDE = "namespace"


def attempt(facts):
    arguments = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17)
    pid = call("clone3", arguments, 64)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "a child in a new user namespace"
