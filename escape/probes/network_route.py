"""Finds a route to the Internet."""

import socket

CLASS = "network"
INCIDENT = "a network that was thought to be off"
BLOCKED_BY = "network namespace"
NEEDS = "a default route"


def attempt(facts):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        ours.connect(("192.0.2.1", 9))
        return f"there is a route, from {ours.getsockname()[0]}"
