"""Makes the kernel write a log of processes to a file of its choice."""

from lib import reached

CLASS = "system calls"
INCIDENT = "acct(2) writes as the kernel, outside of the container's rights"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("acct", b"/nowhere/at/all\0")
