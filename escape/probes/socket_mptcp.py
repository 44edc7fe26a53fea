"""Opens a multipath TCP socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "a young protocol behind an old family"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(socket.AF_INET, socket.SOCK_STREAM, 262)
