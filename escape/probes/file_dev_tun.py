"""Opens a network tunnel."""

import os

from lib import can_open

CLASS = "file system"
INCIDENT = "a way to make packets"
BLOCKED_BY = "root directory, which has six devices"
NEEDS = "/dev/net/tun"


def attempt(facts):
    return can_open("/dev/net/tun", os.O_RDWR)
