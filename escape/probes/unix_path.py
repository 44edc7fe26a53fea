"""Connects to a Unix socket of the host by its path."""

import socket

CLASS = "Unix sockets"
INCIDENT = "docker.sock, containerd, dbus, gpg-agent"
BLOCKED_BY = "root directory"


def attempt(facts):
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(facts["socket_path"])
    return "connected"
