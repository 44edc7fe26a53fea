"""Opens an XDP socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "young code behind a socket family that nobody here needs"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(44, socket.SOCK_RAW)
