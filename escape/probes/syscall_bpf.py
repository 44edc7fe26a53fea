"""Loads a program into the kernel's own interpreter."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2021-3490, CVE-2022-23222: wrong bounds in the verifier, root from an unprivileged bpf()"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("bpf", 0, 0, 0)
