"""Connects to a port on another sandbox's loopback."""

import socket

CLASS = "neighbours"
INCIDENT = "containers in one network namespace"
BLOCKED_BY = "network namespace"
KEPT = []


def neighbour(facts):
    ours = socket.socket()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    ours.bind(("127.0.0.1", 47013))
    ours.listen()
    KEPT.append(ours)


def attempt(facts):
    with socket.create_connection(("127.0.0.1", 47013), timeout=5):
        return "connected to the neighbour"
