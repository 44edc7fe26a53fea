"""Attaches System V shared memory of another sandbox."""

import ctypes

from lib import LIBC

CLASS = "neighbours"
INCIDENT = "containers that share an IPC namespace"
BLOCKED_BY = "IPC namespace"


def neighbour(facts):
    if LIBC.shmget(0x42454C4C, 4096, 0o1666) < 0:
        raise OSError(ctypes.get_errno(), "shmget")


def attempt(facts):
    if LIBC.shmget(0x42454C4C, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    return "found the neighbour's segment"
