"""Sees a process of the host."""

from lib import read_all

CLASS = "/proc"
INCIDENT = "containers that share the host's pid namespace"
BLOCKED_BY = "pid namespace"


def attempt(facts):
    return "found it" if facts["marker"].encode() in read_all(f"/proc/{facts['host_pid']}/cmdline") else None
