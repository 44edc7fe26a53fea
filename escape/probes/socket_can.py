"""Opens a CAN bus socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2021-34693, CVE-2021-3609"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(29, socket.SOCK_RAW, 1)
