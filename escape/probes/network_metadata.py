"""Finds a route to the cloud's metadata service."""

import socket

CLASS = "network"
INCIDENT = "Capital One, 2019: credentials from 169.254.169.254"
BLOCKED_BY = "network namespace"
NEEDS = "a default route"


def attempt(facts):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        ours.connect(("169.254.169.254", 80))
    return "there is a route"
