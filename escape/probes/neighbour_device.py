"""Learns of another sandbox by a lock on a device that both have."""

import fcntl
import os

CLASS = "neighbours"
INCIDENT = "a side channel through file locks"
BLOCKED_BY = "devices that are made for each sandbox; an ordinary user can make none"
KEPT = []


def neighbour(facts):
    KEPT.append(os.open("/dev/full", os.O_RDONLY))
    fcntl.flock(KEPT[0], fcntl.LOCK_EX)


def attempt(facts):
    file = os.open("/dev/full", os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "the neighbour's lock is seen"
