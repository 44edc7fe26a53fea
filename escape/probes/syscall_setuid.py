"""Becomes root inside, which may be somebody outside."""

import os

CLASS = "system calls"
INCIDENT = "uid 0 in a container that has no user namespace is uid 0"
BLOCKED_BY = "user namespace and capabilities"


def attempt(facts):
    os.setresuid(0, 0, 0)
    return "is uid 0"
