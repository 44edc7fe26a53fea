"""Names another host in the request line than in the Host header, which is the allowed one."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "proxies that compared the header and dialled the target"
BLOCKED_BY = "the Host header must be the host that was asked for"
NETWORK = "allowlist"


def attempt(facts):
    port = facts["site_port"]
    return by_proxy(facts, get(f"secret.test:{port}", f"{facts['allowed']}:{port}"))
