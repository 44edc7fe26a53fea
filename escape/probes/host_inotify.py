"""Learns which files of /usr the host opens."""

import ctypes
import os
import select

from lib import LIBC

CLASS = "the host"
INCIDENT = "a side channel through file notifications"
BLOCKED_BY = "root directory, whose files are inodes of its own"


def attempt(facts):
    watch = LIBC.inotify_init1(os.O_NONBLOCK)
    if LIBC.inotify_add_watch(watch, facts["opened"].encode(), 0x20) < 0:
        raise OSError(ctypes.get_errno(), "inotify_add_watch")
    return "the host's access is seen" if select.select([watch], [], [], 5)[0] else None
