"""Joins a session keyring: keyrings belong to users, not to namespaces."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2016-0728: a counter of keyring references overflowed into root"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("keyctl", 0, -3, 0)
