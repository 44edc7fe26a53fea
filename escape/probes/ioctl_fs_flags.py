"""Sets flags such as immutable on a file."""

import os

from lib import reached

CLASS = "ioctls"
INCIDENT = "FS_IOC_SETFLAGS left files that nobody could remove"
BLOCKED_BY = "seccomp, which knows fourteen harmless ones"


def attempt(facts):
    return reached("ioctl", os.open(facts["work"], os.O_RDONLY), 0x40086602, 0)
