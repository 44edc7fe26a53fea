"""Connects to a service on the host's loopback."""

import socket

CLASS = "network"
INCIDENT = "local services without passwords: databases, agents, debuggers"
BLOCKED_BY = "network namespace"


def attempt(facts):
    with socket.create_connection(("127.0.0.1", facts["tcp_port"]), timeout=5):
        return "connected"
