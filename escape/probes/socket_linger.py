"""Makes whoever closes its socket last wait."""

import socket
import struct

CLASS = "socket families"
INCIDENT = "a lingering socket passed to a supervisor blocks its close()"
BLOCKED_BY = "seccomp"


def attempt(facts):
    with socket.socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))
    return "lingers"
