"""The same with the address 0.0.0.0, which is the machine itself."""

import socket

CLASS = "network"
INCIDENT = "0.0.0.0-day: browsers let pages reach local services by it"
BLOCKED_BY = "network namespace"


def attempt(facts):
    with socket.create_connection(("0.0.0.0", facts["tcp_port"]), timeout=5):
        return "connected"
