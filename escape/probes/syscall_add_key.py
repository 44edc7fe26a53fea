"""Stores a key in the keyring of the user outside."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2015-8539; kernel keys belong to a user, and so are shared by all containers of one"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("add_key", b"user\0", b"belljar\0", b"x", 1, -1)
