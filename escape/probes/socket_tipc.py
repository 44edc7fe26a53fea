"""Opens a TIPC socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2021-43267"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(30, socket.SOCK_STREAM)
