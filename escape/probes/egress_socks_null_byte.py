"""Asks the SOCKS proxy for a name with a null byte, which ends like the allowed one."""

from lib import by_socks

CLASS = "allow-list"
INCIDENT = "a null byte passed a domain allow-list of a SOCKS proxy"
BLOCKED_BY = "names in one form; what is no plain name is refused"
NETWORK = "allowlist"


def attempt(facts):
    return by_socks(facts, 3, f"secret.test\0.{facts['allowed']}".encode())
