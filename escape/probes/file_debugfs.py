"""Reads the kernel's debugging files."""

import os

CLASS = "file system"
INCIDENT = "tracefs and debugfs in containers"
BLOCKED_BY = "root directory"


def attempt(facts):
    return f"found {len(os.listdir('/sys/kernel'))} entries in /sys/kernel"
