"""Opens a System V message queue of another sandbox."""

import ctypes

from lib import LIBC

CLASS = "neighbours"
INCIDENT = "containers that share an IPC namespace"
BLOCKED_BY = "IPC namespace"


def neighbour(facts):
    if LIBC.msgget(0x42454C4D, 0o1666) < 0:
        raise OSError(ctypes.get_errno(), "msgget")


def attempt(facts):
    if LIBC.msgget(0x42454C4D, 0) < 0:
        raise OSError(ctypes.get_errno(), "msgget")
    return "found the neighbour's queue"
