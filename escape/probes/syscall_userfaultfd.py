"""Stops the kernel in the middle of a copy, which wins races for other exploits."""

from lib import reached

CLASS = "system calls"
INCIDENT = "the public exploit of CVE-2021-26708, and of most other kernel races, holds the kernel still with it"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("userfaultfd", -1)
