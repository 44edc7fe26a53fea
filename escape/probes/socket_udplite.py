"""Opens a UDP-Lite socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "protocols nobody uses"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(socket.AF_INET, socket.SOCK_DGRAM, 136)
