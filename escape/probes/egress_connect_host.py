"""Opens a tunnel to the allowed host, and asks in it for another."""

from lib import by_tunnel, get_within

CLASS = "allow-list"
INCIDENT = "domain fronting"
BLOCKED_BY = "the Host header must be the host that was asked for, also in tunnels"
NETWORK = "allowlist"


def attempt(facts):
    return by_tunnel(facts, f"{facts['allowed']}:{facts['site_port']}", get_within("secret.test"))
