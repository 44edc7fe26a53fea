"""Opens a socket to the hypervisor."""

import socket

from lib import family

CLASS = "socket families"
INCIDENT = "CVE-2021-26708; and services that trust whoever comes by vsock"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return family(40, socket.SOCK_STREAM)
