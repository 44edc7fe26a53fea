"""Reads a disk of the host."""

import os
import stat

from lib import read_all

CLASS = "file system"
INCIDENT = "privileged containers, by design"
BLOCKED_BY = "root directory, which has six devices"
NEEDS = "/dev/loop-control"
PLANT = "disk"


def attempt(facts):
    refused = None
    for name in sorted(os.listdir("/dev")):
        path = f"/dev/{name}"
        if stat.S_ISBLK(os.lstat(path).st_mode):
            try:
                if read_all(path, 512):
                    return f"read from {path}"
            except OSError as error:
                refused = error
    if refused:
        raise refused
