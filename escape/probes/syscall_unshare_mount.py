"""Makes a mount namespace of its own."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2022-0492"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("unshare", 0x00020000)
