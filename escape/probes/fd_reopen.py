"""Reopens one of its own pipes or sockets for more than it was given."""

import os

from lib import read_all

CLASS = "descriptors"
INCIDENT = "magic links in /proc/self/fd give back rights that a descriptor lacks"
BLOCKED_BY = "descriptors are pipes and sockets, not files"
PLANT = "file"


def attempt(facts):
    for number in filter(str.isdigit, os.listdir("/proc/self/fd")):
        path = f"/proc/self/fd/{number}"
        try:
            if facts["secret"].encode() in read_all(path):
                return f"read the host's secret through {path}"
        except OSError:
            continue
