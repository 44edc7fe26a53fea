"""Sees the host's connections."""

CLASS = "/proc"
INCIDENT = "/proc/net of a shared namespace"
BLOCKED_BY = "network namespace"


def attempt(facts):
    port = f":{facts['tcp_port']:04X} "
    return "found the host's socket" if port in open("/proc/net/tcp").read() else None
