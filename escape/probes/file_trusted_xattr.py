"""Writes an attribute that overlayfs believes."""

import os

CLASS = "file system"
INCIDENT = "CVE-2021-3493: overlayfs took attributes from an unprivileged user"
BLOCKED_BY = "capabilities"


def attempt(facts):
    path = facts["work"] + "/trusted"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755))
    try:
        os.setxattr(path, "trusted.overlay.opaque", b"y")
        return "wrote a trusted attribute"
    finally:
        os.unlink(path)
