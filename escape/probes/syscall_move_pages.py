"""Learns and moves the physical pages of memory."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2010-0415: move_pages() read kernel memory"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("move_pages", 0, 0, 0, 0, 0, 1 << 30)
