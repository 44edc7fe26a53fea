"""Opens a socket to the kernel's cryptography."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2019-8912, and AF_ALG bugs since, reached from sandboxes that allowed all families"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(38, socket.SOCK_SEQPACKET)
