"""Opens FUSE, to answer the kernel's questions about files as slowly as it likes."""

import os

from lib import can_open

CLASS = "file system"
INCIDENT = "FUSE replaces userfaultfd in exploits"
BLOCKED_BY = "root directory, which has six devices"
NEEDS = "/dev/fuse"


def attempt(facts):
    return can_open("/dev/fuse", os.O_RDWR)
