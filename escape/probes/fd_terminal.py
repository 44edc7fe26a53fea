"""Writes to the terminal of whoever started the server."""

from lib import can_write

CLASS = "descriptors"
INCIDENT = "CVE-2017-5226"
BLOCKED_BY = "a session of its own, and no terminal"
OUTSIDE = "terminal"


def attempt(facts):
    return can_write("/dev/tty")
