"""Hangs up the controlling terminal."""

from lib import reached

CLASS = "system calls"
INCIDENT = "terminals shared with whoever started the sandbox"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("vhangup")
