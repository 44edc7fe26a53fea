"""Connects to the hypervisor's services."""

import errno
import socket

CLASS = "network"
INCIDENT = "services that trust whoever comes by vsock"
BLOCKED_BY = "seccomp"
NEEDS = "vsock"


def attempt(facts):
    with socket.socket(40, socket.SOCK_STREAM) as ours:
        ours.settimeout(2)
        try:
            ours.connect((2, 1))
        except OSError as error:
            if error.errno == errno.EPERM:
                raise
            return f"the kernel answered {errno.errorcode.get(error.errno)}"
    return "connected"
