"""Sees other interfaces than its loopback."""

CLASS = "network"
INCIDENT = "a network namespace that was shared"
BLOCKED_BY = "network namespace"


def attempt(facts):
    names = [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:] if "lo:" not in line]
    return f"found {names}" if names else None
