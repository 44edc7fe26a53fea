"""Opens a netlink socket to xfrm."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2017-7184, CVE-2022-27666: xfrm from a container"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(16, socket.SOCK_RAW, 6)
