"""Watches every file of the machine."""

from lib import reached

CLASS = "system calls"
INCIDENT = "fanotify marks whole mounts and file systems"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("fanotify_init", 1 << 30, 0)
