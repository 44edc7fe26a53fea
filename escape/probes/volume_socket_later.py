"""Connects to a Unix socket that came into a read-only volume after the sandbox had it."""

import socket

from lib import put_later

CLASS = "volumes"
INCIDENT = "read-only binds do not stop connect() to a Unix socket"
BLOCKED_BY = "id-mapped mount, in which the file belongs to nobody; an ordinary user's server has none"


def attempt(facts):
    path = put_later(facts, "socket")
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(path)
    return "connected to a socket of the host"
