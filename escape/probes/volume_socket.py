"""Connects to a Unix socket that lies in a read-only volume."""

import socket

CLASS = "volumes"
INCIDENT = "read-only binds do not stop connect() to a Unix socket"
BLOCKED_BY = "id-mapped mount, in which the file belongs to nobody; an ordinary user's server covers it"


def attempt(facts):
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(facts["read_only"] + "/socket")
    return "connected to a socket of the host"
