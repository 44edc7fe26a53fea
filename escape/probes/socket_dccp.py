"""Opens a DCCP socket."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2017-6074: eleven years old when it was found"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(socket.AF_INET, 6, 33)
