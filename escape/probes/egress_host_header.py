"""Asks the allowed host for another one in the Host header."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "domain fronting"
BLOCKED_BY = "the Host header must be the host that was asked for"
NETWORK = "allowlist"


def attempt(facts):
    return by_proxy(facts, get(f"{facts['allowed']}:{facts['site_port']}", "secret.test"))
