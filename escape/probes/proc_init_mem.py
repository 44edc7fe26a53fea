"""Writes the memory of pid 1."""

import os

from lib import can_open

CLASS = "/proc"
INCIDENT = "a supervisor of the same user"
BLOCKED_BY = "a guest that cannot be read"
OUTSIDE = "namespace"


def attempt(facts):
    return can_open("/proc/1/mem", os.O_RDWR)
