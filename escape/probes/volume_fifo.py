"""Writes into a FIFO that lies in a read-only volume."""

from lib import can_write

CLASS = "volumes"
INCIDENT = "read-only mounts do not stop writes to a FIFO"
BLOCKED_BY = "id-mapped mount, in which the file belongs to nobody; an ordinary user's server covers it"


def attempt(facts):
    return can_write(facts["read_only"] + "/fifo", b"x")
