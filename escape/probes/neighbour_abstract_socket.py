"""Connects to an abstract Unix socket of another sandbox."""

import socket

CLASS = "neighbours"
INCIDENT = "CVE-2020-15257, between neighbours"
BLOCKED_BY = "network namespace"
KEPT = []


def neighbour(facts):
    ours = socket.socket(socket.AF_UNIX)
    ours.bind("\0belljar-escape-neighbour")
    ours.listen()
    KEPT.append(ours)


def attempt(facts):
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect("\0belljar-escape-neighbour")
    return "connected to the neighbour"
