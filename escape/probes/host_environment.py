"""Finds a secret of the host in its own environment."""

import os

CLASS = "the host"
INCIDENT = "API keys that a sandbox inherited"
BLOCKED_BY = "a built environment"
PLANT = "environment"


def attempt(facts):
    return "found it" if facts["secret"] in os.environ.values() else None
