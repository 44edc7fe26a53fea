"""The same with an IPv4 address inside of an IPv6 one."""

import socket

CLASS = "network"
INCIDENT = "an IPv4-mapped address passed an allow-list"
BLOCKED_BY = "network namespace"


def attempt(facts):
    with socket.socket(socket.AF_INET6) as ours:
        ours.settimeout(5)
        ours.connect(("::ffff:127.0.0.1", facts["tcp_port"]))
    return "connected"
