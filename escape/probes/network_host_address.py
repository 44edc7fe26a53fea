"""Connects to the host's own address in its network."""

import socket

CLASS = "network"
INCIDENT = "bridges that route to the host"
BLOCKED_BY = "network namespace"


def attempt(facts):
    with socket.create_connection((facts["host_address"], facts["any_port"]), timeout=5):
        return "connected"
