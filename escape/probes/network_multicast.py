"""Sends to its network neighbours by multicast."""

import socket

CLASS = "network"
INCIDENT = "mDNS and SSDP from containers"
BLOCKED_BY = "network namespace"
NEEDS = "a default route"


def attempt(facts):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        ours.sendto(b"x", ("224.0.0.251", 5353))
    return "sent"
