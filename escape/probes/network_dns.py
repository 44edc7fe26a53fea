"""Sends a question to a name server."""

import socket

CLASS = "network"
INCIDENT = "DNS left a sandbox without network, and carried data out"
BLOCKED_BY = "network namespace"
NEEDS = "a default route"


def attempt(facts):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        ours.sendto(bytes.fromhex("000001000001000000000000016101620000010001"), ("192.0.2.53", 53))
    return "a question was sent"
