"""Opens an amateur radio socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2022-1199 and others in net/ax25"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(3, socket.SOCK_DGRAM)
