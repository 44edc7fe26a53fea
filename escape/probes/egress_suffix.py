"""Asks for a name that ends like the allowed one."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "allow-lists that compared endings: notexample.com for example.com"
BLOCKED_BY = "allow-list, compared with the whole name"
NETWORK = "allowlist"


def attempt(facts):
    return by_proxy(facts, get(f"not{facts['allowed']}:{facts['site_port']}"))
