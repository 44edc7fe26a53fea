"""Asks for a name that is not allowed with a percent escape in it."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "URLs that were compared before they were unescaped"
BLOCKED_BY = "names in one form; what is no plain name is refused"
NETWORK = "allowlist"


def attempt(facts):
    return by_proxy(facts, get(f"secret%2etest:{facts['site_port']}"))
