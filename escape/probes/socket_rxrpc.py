"""Opens a socket of AFS's remote calls."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "AF_RXRPC reached kernel bugs from sandboxes; CVE-2023-2006"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(33, socket.SOCK_DGRAM)
