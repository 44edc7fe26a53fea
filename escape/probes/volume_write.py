"""Writes to a volume that is shared read-only."""

import os

CLASS = "volumes"
INCIDENT = "a read-only volume that was not"
BLOCKED_BY = "read-only mount"


def attempt(facts):
    path = facts["read_only"] + "/made"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    os.unlink(path)
    return "made a file in the read-only volume"
