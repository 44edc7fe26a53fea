"""Sees a process of another sandbox."""

import os
import subprocess

from lib import read_all

CLASS = "neighbours"
INCIDENT = "containers that share a pid namespace"
BLOCKED_BY = "pid namespace"
KEPT = []


def neighbour(facts):
    KEPT.append(subprocess.Popen(["sleep", "98765.4321"]))


def attempt(facts):
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"98765.4321" in read_all(f"/proc/{number}/cmdline"):
                return f"found the neighbour's process as {number}"
        except OSError:
            continue
