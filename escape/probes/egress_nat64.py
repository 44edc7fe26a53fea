"""Asks for an address of the host in the form that NAT64 gateways translate."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "filters for private addresses that did not know 64:ff9b::/96"
BLOCKED_BY = "unusual forms of addresses are refused, and private addresses whatever their form"
NETWORK = "allowlist, open"


def attempt(facts):
    return by_proxy(facts, get(f"[64:ff9b::7f00:2]:{facts['site_port']}"))
