"""Writes the memory of another process."""

from lib import reached

CLASS = "system calls"
INCIDENT = "sandboxes that filtered ptrace(2) and forgot its siblings"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("process_vm_writev", 1 << 22, 0, 0, 0, 0, 0)
