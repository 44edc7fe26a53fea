"""The same over IPv6."""

import socket

CLASS = "network"
INCIDENT = "rules for IPv4 alone"
BLOCKED_BY = "network namespace"
NEEDS = "IPv6"


def attempt(facts):
    with socket.create_connection(("::1", facts["tcp6_port"]), timeout=5):
        return "connected"
