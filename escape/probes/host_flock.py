"""Learns of the host by a lock on a file of /usr that both can read."""

import fcntl
import os

CLASS = "the host"
INCIDENT = "a side channel through file locks"
BLOCKED_BY = "root directory, whose files are inodes of its own"


def attempt(facts):
    file = os.open(facts["locked"], os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "the host's lock is seen"
