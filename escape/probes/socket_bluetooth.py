"""Opens a Bluetooth socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2020-12351 and a long row"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(31, socket.SOCK_RAW, 1)
