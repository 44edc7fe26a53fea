"""Writes its own user map, to become somebody."""

import os

CLASS = "/proc"
INCIDENT = "CVE-2013-1959, CVE-2018-18955: maps that gave more than they should"
BLOCKED_BY = "user namespace, which has its map already"
OUTSIDE = "user namespace"


def attempt(facts):
    fd = os.open("/proc/self/uid_map", os.O_WRONLY)
    os.write(fd, b"0 0 1")
    return "wrote its user map"
