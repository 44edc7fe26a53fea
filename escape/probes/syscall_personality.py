"""Switches off the randomisation of addresses for what it starts."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2009-1895: personalities survived into setuid programs"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("personality", 0xFFFFFFFF)
