"""Reads the kernel's debugging files."""

import os

CLASS = "file system"
INCIDENT = "tracefs and debugfs in containers"
BLOCKED_BY = "root directory"


def attempt(facts):
    found = os.listdir("/sys/kernel")
    return f"found {len(found)} entries in /sys/kernel" if found else None
