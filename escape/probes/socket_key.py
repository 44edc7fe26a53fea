"""Opens a socket of IPsec's key management."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2022-27666: xfrm, reached through AF_KEY"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(15, socket.SOCK_RAW, 2)
