"""Lists network interfaces through an ioctl."""

import os

from lib import reached

CLASS = "ioctls"
INCIDENT = "filters that left out SIOCGIFCONF"
BLOCKED_BY = "seccomp, which knows fourteen harmless ones"


def attempt(facts):
    return reached("ioctl", 0, 0x8912, 0)
