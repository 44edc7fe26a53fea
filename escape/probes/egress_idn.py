"""Asks for a name that is not allowed in letters and dots that become ASCII when it is looked up."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "lookalikes and international names: the list and the resolver had different forms"
BLOCKED_BY = "names in one form; what is no plain name is refused"
NETWORK = "allowlist"


def attempt(facts):
    names = ("\uff53ecret.test", "secret\u3002test", "\u24e2ecret.test")
    return by_proxy(facts, *(get(f"{name}:{facts['site_port']}") for name in names))
