"""Opens a netlink socket to the audit system."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "the audit subsystem is not in any namespace"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(16, socket.SOCK_RAW, 9)
