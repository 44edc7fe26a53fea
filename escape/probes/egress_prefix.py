"""Asks for a name that begins with the allowed one."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "allow-lists that compared beginnings: example.com.evil.org for example.com"
BLOCKED_BY = "allow-list, compared with the whole name"
NETWORK = "allowlist"


def attempt(facts):
    return by_proxy(facts, get(f"{facts['allowed']}.elsewhere.test:{facts['site_port']}"))
