"""Passes a parameter to a file system that is being set up."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2022-0185"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("fsconfig", -1, 0, 0, 0, 0)
