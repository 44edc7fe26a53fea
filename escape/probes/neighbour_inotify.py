"""Learns which files of /usr another sandbox opens."""

import ctypes
import os
import select

from lib import LIBC

CLASS = "neighbours"
INCIDENT = "a side channel through file notifications"
BLOCKED_BY = "root directory, whose files are inodes of its own"


def neighbour(facts):
    return lambda: os.close(os.open("/usr/bin/sha512sum", os.O_RDONLY))


def attempt(facts):
    watch = LIBC.inotify_init1(os.O_NONBLOCK)
    if LIBC.inotify_add_watch(watch, b"/usr/bin/sha512sum", 0x20) < 0:
        raise OSError(ctypes.get_errno(), "inotify_add_watch")
    return "the neighbour's access is seen" if select.select([watch], [], [], 5)[0] else None
