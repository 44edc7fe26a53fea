"""Learns of another sandbox by a lock on a file of /usr that both can read."""

import fcntl
import os

CLASS = "neighbours"
INCIDENT = "a side channel through file locks"
BLOCKED_BY = "root directory, whose files are inodes of its own"
KEPT = []


def neighbour(facts):
    KEPT.append(os.open("/usr/bin/env", os.O_RDONLY))
    fcntl.flock(KEPT[0], fcntl.LOCK_EX)


def attempt(facts):
    file = os.open("/usr/bin/env", os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "the neighbour's lock is seen"
