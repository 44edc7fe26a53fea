"""Starts the server on a kernel without seccomp filters, and runs code."""

from lib import runs_weaker

CLASS = "missing layers"
INCIDENT = "enforcement switched itself off when a capability was missing"
BLOCKED_BY = "the server refuses to make sandboxes, and says what is missing"
TOOL = True
WITHOUT = "seccomp"
SAYS = "seccomp"


def attempt(call, facts):
    return runs_weaker(call, facts)
