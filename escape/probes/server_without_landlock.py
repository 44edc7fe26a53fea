"""Starts the server on a kernel without Landlock although the operator requires it, and runs code."""

from lib import runs

CLASS = "missing layers"
INCIDENT = "enforcement switched itself off when a capability was missing"
BLOCKED_BY = "the server refuses to make sandboxes, and says what is missing"
TOOL = True
WITHOUT = "landlock"
SAYS = "Landlock"
SETTINGS = {"BELLJAR_ISOLATION_LANDLOCK": "required"}


def attempt(call, facts):
    return runs(call, facts)
