"""Opens an SMC socket, which opens TCP behind it."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "young code behind a socket family that nobody here needs"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(43, socket.SOCK_STREAM)
