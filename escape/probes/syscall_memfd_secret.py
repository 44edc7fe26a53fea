"""Allocates memory that even the kernel cannot reclaim or inspect."""

from lib import reached

CLASS = "system calls"
INCIDENT = "memory outside of every limit but mlock's"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("memfd_secret", 1 << 30)
