"""Sends a datagram to an abstract socket of the host."""

import socket

CLASS = "Unix sockets"
INCIDENT = "syslog and journald believe what they get"
BLOCKED_BY = "network namespace"


def attempt(facts):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.sendto(b"x", "\0" + facts["abstract"] + "-datagram")
    return "sent"
