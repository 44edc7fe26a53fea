"""Asks for an address of the host as an IPv4-mapped address of IPv6."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "an IPv4-mapped address passed a domain allow-list"
BLOCKED_BY = "unusual forms of addresses are refused, and private addresses whatever their form"
NETWORK = "allowlist, open"


def attempt(facts):
    return by_proxy(facts, get(f"[::ffff:127.0.0.2]:{facts['site_port']}"))
