"""Locks memory that can never be swapped."""

import ctypes

from lib import LIBC

LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]

CLASS = "resources"
INCIDENT = "mlock(2) without a limit"
BLOCKED_BY = "rlimits"


def attempt(facts):
    size = facts["memory"]
    address = LIBC.mmap(None, size, 3, 0x22, -1, 0)
    if LIBC.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)) != 0:
        raise OSError(ctypes.get_errno(), "mlock")
    return f"locked {size >> 20} MiB"
