"""Writes the processor's local descriptor table."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2017-17053: a use after free around the table"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("modify_ldt", 0, 0, 0)
