"""Asks a container engine of the host for a privileged container."""

import socket

CLASS = "file system"
INCIDENT = "docker.sock mounted into a container: the whole host"
BLOCKED_BY = "root directory"


def attempt(facts):
    for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", facts["socket_path"]):
        try:
            with socket.socket(socket.AF_UNIX) as ours:
                ours.connect(path)
                return f"connected to {path}"
        except FileNotFoundError:
            continue
