"""Attaches to another process."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2019-13272: PTRACE_TRACEME kept the wrong credentials"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("ptrace", 16, 1 << 22, 0, 0)
