"""Attaches a file as a disk."""

import os

from lib import can_open

CLASS = "file system"
INCIDENT = "mounts of crafted images"
BLOCKED_BY = "root directory, which has six devices"
NEEDS = "/dev/loop-control"


def attempt(facts):
    return can_open("/dev/loop-control", os.O_RDWR)
