"""Starts the server as root without CAP_SYS_ADMIN, and runs code."""

from lib import runs_weaker

CLASS = "missing layers"
INCIDENT = "enforcement switched itself off when a capability was missing"
BLOCKED_BY = "the server refuses to make sandboxes, and says what is missing"
TOOL = True
WITHOUT = "capability"
SAYS = "CAP_SYS_ADMIN"


def attempt(call, facts):
    return runs_weaker(call, facts)
