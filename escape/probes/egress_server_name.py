"""Opens a tunnel to the allowed host, and begins TLS in it for another."""

import ssl

from lib import by_tunnel

CLASS = "allow-list"
INCIDENT = "domain fronting"
BLOCKED_BY = "the server name of TLS must be the host that was asked for"
NETWORK = "allowlist"


def attempt(facts):
    said = ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="secret.test").do_handshake()
    except ssl.SSLWantReadError:
        return by_tunnel(facts, f"{facts['allowed']}:{facts['site_port']}", said.read())
