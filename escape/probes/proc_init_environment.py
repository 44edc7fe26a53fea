"""Reads the environment of pid 1, with the keys in it."""

from lib import read_all

CLASS = "/proc"
INCIDENT = "API keys in the environment of whatever started the sandbox"
BLOCKED_BY = "pid namespace, and a guest that cannot be read"
OUTSIDE = "namespace"


def attempt(facts):
    return "read it" if read_all("/proc/1/environ") else None
