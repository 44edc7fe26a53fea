"""Opens a raw IP socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2017-17712: a race in raw_sendmsg()"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(socket.AF_INET, socket.SOCK_RAW, 255)
