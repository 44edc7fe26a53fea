"""Reads the kernel's command line."""

from lib import read_all

CLASS = "/proc"
INCIDENT = "secrets on kernel command lines"
BLOCKED_BY = "a mount over it"


def attempt(facts):
    text = read_all("/proc/cmdline")
    return "read it" if text.strip() else None
