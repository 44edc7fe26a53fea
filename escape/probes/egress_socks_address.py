"""Asks the SOCKS proxy for an address of the host."""

from lib import by_socks

CLASS = "allow-list"
INCIDENT = "proxies that compared names, and had none to compare"
BLOCKED_BY = "allow-list, which holds for addresses too"
NETWORK = "allowlist, open"


def attempt(facts):
    return by_socks(facts, 1, bytes([127, 0, 0, 2]))
