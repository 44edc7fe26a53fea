"""Rearranges mapped pages with a call that hardly anybody tests any more."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2014-3122 and others in its code"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("remap_file_pages", 0, 0, 1, 0, 0)
