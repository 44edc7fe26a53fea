"""Renames the machine."""

from lib import reached

CLASS = "system calls"
INCIDENT = "containers that shared the host's UTS namespace"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("sethostname", b"escaped", 7)
