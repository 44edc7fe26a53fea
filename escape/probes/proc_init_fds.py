"""Opens the descriptors of pid 1."""

import os

CLASS = "/proc"
INCIDENT = "CVE-2024-21626: descriptors left open"
BLOCKED_BY = "a guest that cannot be read"
OUTSIDE = "namespace"


def attempt(facts):
    return f"found {len(os.listdir('/proc/1/fd'))} descriptors"
