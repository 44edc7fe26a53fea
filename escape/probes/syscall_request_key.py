"""Makes the kernel start a program of the host to find a key."""

from lib import reached

CLASS = "system calls"
INCIDENT = "the upcall /sbin/request-key runs as root, outside of any container"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("request_key", b"user\0", b"belljar\0", 0, 0)
