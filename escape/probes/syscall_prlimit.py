"""Changes the limits of another process of the same user."""

import os

from lib import reached

CLASS = "system calls"
INCIDENT = "limits of a supervisor were lowered until it failed"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("prlimit64", os.getppid(), 7, 0, 0)
