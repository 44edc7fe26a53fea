"""Opens a netlink socket to the routing tables."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "how a sandbox learns of interfaces and routes"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(16, socket.SOCK_RAW, 0)
