"""Claims to be root when it talks to a service over a socket."""

import socket
import struct

CLASS = "Unix sockets"
INCIDENT = "services that trust SCM_CREDENTIALS"
BLOCKED_BY = "capabilities"
OUTSIDE = "namespace"


def attempt(facts):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    right.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    left.sendmsg([b"x"], [(socket.SOL_SOCKET, 2, struct.pack("3i", 1, 0, 0))])
    return "claimed to be pid 1 and root"
