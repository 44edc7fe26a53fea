"""Restarts the machine. The probe gives a wrong magic number, which only the kernel would notice."""

from lib import reached

CLASS = "system calls"
INCIDENT = "containers that shared the host's pid namespace could"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("reboot", 0, 0, 0, 0)
