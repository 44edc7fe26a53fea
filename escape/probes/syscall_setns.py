"""Enters a namespace of another process by its file."""

import os

from lib import reached

CLASS = "system calls"
INCIDENT = "nsenter into the namespaces of pid 1"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    fd = os.open("/proc/self/ns/uts", os.O_RDONLY)
    return reached("setns", fd, 0)
