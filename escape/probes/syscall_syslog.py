"""Reads the kernel's messages, with addresses in them."""

from lib import reached

CLASS = "system calls"
INCIDENT = "dmesg gave away kernel addresses to every container"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("syslog", 10, 0, 0)
