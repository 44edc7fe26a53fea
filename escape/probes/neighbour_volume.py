"""Talks to another sandbox through a socket in a directory that both may write to."""

import os
import socket

CLASS = "neighbours"
INCIDENT = "pods that shared a volume shared a channel, whatever their networks"
BLOCKED_BY = "nothing: a directory shared for writing connects everybody who has it"
KEPT = []


def neighbour(facts):
    path = f"{facts['project_inside']}/neighbour"
    if os.path.lexists(path):
        os.unlink(path)
    KEPT.append(socket.socket(socket.AF_UNIX))
    KEPT[0].bind(path)
    KEPT[0].listen(100)


def attempt(facts):
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(f"{facts['project_inside']}/neighbour")
    return "connected to the neighbour"
