"""Sends two requests at once, of which the first is allowed."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "proxies that looked at the first request of a connection only"
BLOCKED_BY = "each request has a connection of its own"
NETWORK = "allowlist"


def attempt(facts):
    port = facts["site_port"]
    return by_proxy(facts, get(f"{facts['allowed']}:{port}") + get(f"secret.test:{port}"))
