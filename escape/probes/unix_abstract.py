"""Connects to an abstract Unix socket of the host."""

import socket

CLASS = "Unix sockets"
INCIDENT = "CVE-2020-15257: containerd's abstract socket was open to containers with the host's network"
BLOCKED_BY = "network namespace"


def attempt(facts):
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect("\0" + facts["abstract"])
    return "connected"
