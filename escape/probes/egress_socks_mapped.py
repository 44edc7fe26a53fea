"""Asks the SOCKS proxy for an address of the host in the form of IPv6."""

from lib import by_socks

CLASS = "allow-list"
INCIDENT = "an IPv4-mapped address passed a domain allow-list"
BLOCKED_BY = "unusual forms of addresses are refused, and private addresses whatever their form"
NETWORK = "allowlist, open"


def attempt(facts):
    return by_socks(facts, 4, bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 2]))
