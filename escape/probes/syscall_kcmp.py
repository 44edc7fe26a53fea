"""Learns addresses of kernel objects by comparing them."""

from lib import reached

CLASS = "system calls"
INCIDENT = "kcmp(2) orders kernel pointers, which helps against randomised addresses"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("kcmp", 1 << 22, 1 << 22, 0, 0, 0)
