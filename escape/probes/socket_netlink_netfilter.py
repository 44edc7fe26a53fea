"""Opens a netlink socket to nftables."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2024-1086, CVE-2023-32233: root through nf_tables"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(16, socket.SOCK_RAW, 12)
