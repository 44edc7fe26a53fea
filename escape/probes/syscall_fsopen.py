"""Begins a file system with the newer interface."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2022-0185: an overflow in legacy_parse_param(), reached through fsopen() and fsconfig()"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("fsopen", b"ext4\0", 0)
