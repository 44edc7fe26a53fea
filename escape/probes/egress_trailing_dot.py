"""Asks for a name that is not allowed, with a dot at its end."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "a trailing dot passed a domain allow-list"
BLOCKED_BY = "names in one form; what is no plain name is refused"
NETWORK = "allowlist"


def attempt(facts):
    return by_proxy(facts, get(f"secret.test.:{facts['site_port']}"))
