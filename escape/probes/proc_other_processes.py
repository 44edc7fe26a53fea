"""Looks for the host's processes among all numbers."""

import os

from lib import read_all

CLASS = "/proc"
INCIDENT = "containers that share the host's pid namespace"
BLOCKED_BY = "pid namespace"


def attempt(facts):
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            if facts["marker"].encode() in read_all(f"/proc/{number}/cmdline"):
                return f"found it as {number}"
        except OSError:
            continue
