"""Opens a ping socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2015-3636: root on every Android through ping sockets"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(socket.AF_INET, socket.SOCK_DGRAM, 1)
