"""Makes a network namespace, with nftables of its own."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2024-1086: nf_tables, reached from a user and network namespace"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("unshare", 0x40000000)
