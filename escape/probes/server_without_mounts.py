"""Starts the server where nothing can be mounted, and runs code."""

from lib import runs_weaker

CLASS = "missing layers"
INCIDENT = "enforcement switched itself off when a capability was missing"
BLOCKED_BY = "the server refuses to make sandboxes, and says what is missing"
TOOL = True
WITHOUT = "mounts"
SAYS = "mount"


def attempt(call, facts):
    return runs_weaker(call, facts)
