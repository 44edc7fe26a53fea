"""Puts the allowed name before an @, as if it were a user's."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "filters that compared the beginning of a URL"
BLOCKED_BY = "names in one form; what is no plain name is refused"
NETWORK = "allowlist"


def attempt(facts):
    port = facts["site_port"]
    return by_proxy(facts, *(get(f"{facts['allowed']}{more}@secret.test:{port}") for more in ("", f":{port}")))
