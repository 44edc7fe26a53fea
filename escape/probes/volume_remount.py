"""Remounts the read-only volume writable."""

from lib import reached

CLASS = "volumes"
INCIDENT = "a read-only volume was remounted from inside"
BLOCKED_BY = "seccomp and capabilities"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("mount", 0, facts["read_only"].encode() + b"\0", 0, 32 | 4096, 0)
