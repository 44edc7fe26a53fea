"""Opens the machine's memory."""

import os

from lib import can_open

CLASS = "file system"
INCIDENT = "direct access to physical memory"
BLOCKED_BY = "root directory, which has six devices"
NEEDS = "/dev/mem"


def attempt(facts):
    return can_open("/dev/mem", os.O_RDWR)
