"""Opens a Qualcomm IPC router socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2021-29647"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(42, socket.SOCK_DGRAM)
