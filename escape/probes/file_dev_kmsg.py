"""Opens the kernel's log."""

import os

from lib import can_open

CLASS = "file system"
INCIDENT = "kernel addresses, and lines that others believe"
BLOCKED_BY = "root directory, which has six devices"
NEEDS = "/dev/kmsg"


def attempt(facts):
    return can_open("/dev/kmsg", os.O_RDWR)
