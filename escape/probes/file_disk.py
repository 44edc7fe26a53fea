"""Opens a disk of the host."""

import os
import stat

from lib import can_open

CLASS = "file system"
INCIDENT = "privileged containers, by design"
BLOCKED_BY = "root directory, which has six devices"
NEEDS = "a disk in /dev"


def attempt(facts):
    for name in sorted(os.listdir("/dev")):
        if name.startswith(("sd", "vd", "nvme", "xvd")) and stat.S_ISBLK(os.stat(f"/dev/{name}").st_mode):
            return can_open(f"/dev/{name}")
