"""Opens a packet socket, which sees and forges every frame."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2017-7308, CVE-2020-14386"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(17, socket.SOCK_RAW, 0x0300)
