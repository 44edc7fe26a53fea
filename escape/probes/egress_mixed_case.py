"""Asks for a name that is not allowed, in other letters."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "mixed case passed a domain allow-list"
BLOCKED_BY = "allow-list, compared with the whole name, in small letters"
NETWORK = "allowlist"


def attempt(facts):
    return by_proxy(facts, get(f"SeCrEt.TeSt:{facts['site_port']}"))
