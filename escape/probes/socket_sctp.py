"""Opens an SCTP socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2019-8956, CVE-2021-23133"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(socket.AF_INET, socket.SOCK_STREAM, 132)
