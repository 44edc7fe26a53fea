"""Hides a name that is not allowed before a null byte."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "a null byte passed a domain allow-list: the list saw the end, the resolver the beginning"
BLOCKED_BY = "names in one form; what is no plain name is refused"
NETWORK = "allowlist"


def attempt(facts):
    return by_proxy(facts, get(f"secret.test\0.{facts['allowed']}:{facts['site_port']}"))
