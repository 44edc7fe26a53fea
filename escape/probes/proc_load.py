"""Sees how busy the machine is."""

CLASS = "/proc"
INCIDENT = "load and free memory tell what neighbours do"
BLOCKED_BY = "nothing: /proc shows the machine's load and memory"


def attempt(facts):
    return f"load {open('/proc/loadavg').read().strip()}"
