"""Opens an X.25 socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "protocols nobody uses are loaded on demand, with their bugs (CVE-2010-3873)"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(9, socket.SOCK_SEQPACKET)
