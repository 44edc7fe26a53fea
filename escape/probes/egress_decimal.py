"""Asks for an address of the host as one decimal number."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "a decimal address passed a domain allow-list"
BLOCKED_BY = "unusual forms of addresses are refused, and private addresses whatever their form"
NETWORK = "allowlist, open"


def attempt(facts):
    # 127.0.0.2
    return by_proxy(facts, get(f"2130706434:{facts['site_port']}"))
