"""Looks for descriptors that show a file of the host."""

import os

CLASS = "descriptors"
INCIDENT = "a fork inherited the supervisor's descriptors"
BLOCKED_BY = "close_range"
PLANT = "directory"


def attempt(facts):
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith("/") and not target.startswith(tuple(facts["own_paths"])):
            return f"descriptor {number} is {target}"
