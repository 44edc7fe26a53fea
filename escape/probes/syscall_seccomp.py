"""Installs a filter that answers system calls from another process, to confuse a supervisor."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2022-30594: seccomp options could be switched off through ptrace"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("seccomp", 3, 0, 0)
