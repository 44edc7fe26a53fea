"""The same as TIOCSTI with high bits set, which a careless filter compares and the kernel drops."""

import os

from lib import reached

CLASS = "ioctls"
INCIDENT = "CVE-2019-10063 (Flatpak): filters compared 64 bits, the kernel used 32"
BLOCKED_BY = "seccomp, which knows fourteen harmless ones"


def attempt(facts):
    return reached("ioctl", 0, 0x5412 | (1 << 33), b"x")
