"""Sends a datagram to a service of the host, and waits for its answer."""

import socket

CLASS = "network"
INCIDENT = "DNS left a sandbox without network"
BLOCKED_BY = "network namespace"


def attempt(facts):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        ours.settimeout(3)
        ours.sendto(b"ping", ("127.0.0.1", facts["udp_port"]))
        return "was answered" if ours.recv(100) == b"pong" else None
