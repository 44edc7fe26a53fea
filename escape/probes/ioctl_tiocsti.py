"""Types into the terminal of whoever started it."""

import os

from lib import reached

CLASS = "ioctls"
INCIDENT = "CVE-2017-5226 (bubblewrap): TIOCSTI put commands into the shell outside"
BLOCKED_BY = "seccomp, which knows fourteen harmless ones"


def attempt(facts):
    return reached("ioctl", 0, 0x5412, b"x")
