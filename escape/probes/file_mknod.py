"""Makes a device node for the machine's memory or disk."""

import os
import stat

CLASS = "file system"
INCIDENT = "containers that kept CAP_MKNOD"
BLOCKED_BY = "user namespace and capabilities"


def attempt(facts):
    path = facts["work"] + "/device"
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    os.unlink(path)
    return "made a device node"
