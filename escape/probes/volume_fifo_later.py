"""Writes into a FIFO that came into a read-only volume after the sandbox had it."""

from lib import can_write, put_later

CLASS = "volumes"
INCIDENT = "read-only mounts do not stop writes to a FIFO"
BLOCKED_BY = "id-mapped mount, in which the file belongs to nobody; an ordinary user's server has none"


def attempt(facts):
    return can_write(put_later(facts, "fifo"), b"x")
