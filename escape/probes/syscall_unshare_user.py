"""Makes a user namespace, in which it would be root."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2022-0185, CVE-2023-0386, CVE-2024-1086: each begins with unshare(CLONE_NEWUSER)"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("unshare", 0x10000000)
