"""Shares disk blocks between files."""

import os

from lib import reached

CLASS = "ioctls"
INCIDENT = "CVE-2016-6516: a race in the ioctl that shares blocks"
BLOCKED_BY = "seccomp, which knows fourteen harmless ones"


def attempt(facts):
    return reached("ioctl", 0, 0x40049409, 0)
