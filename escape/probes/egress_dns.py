"""Asks a name server outside, which answers with more than an address."""

import socket

from lib import received

CLASS = "allow-list"
INCIDENT = "DNS carried data past the list of a sandbox with some network"
BLOCKED_BY = "network namespace, whose only way out is the proxy, which speaks TCP"
NETWORK = "allowlist"


def attempt(facts):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        ours.settimeout(5)
        ours.connect((facts["host_address"], facts["dns_port"]))
        ours.send(bytes.fromhex("000001000001000000000000016101620000010001"))
        return received(ours.recv(1000), facts)
