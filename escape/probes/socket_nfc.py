"""Opens an NFC socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2021-23134, CVE-2021-38208"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(39, socket.SOCK_RAW, 1)
