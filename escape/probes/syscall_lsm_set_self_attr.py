"""Changes its own label in a security module."""

from lib import reached

CLASS = "system calls"
INCIDENT = "filters older than the call"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("lsm_set_self_attr", 0, 0, 0, 0)
