"""Gives a file capabilities."""

import os

CLASS = "file system"
INCIDENT = "CVE-2023-0386: a file's capabilities survived a copy by overlayfs"
BLOCKED_BY = "user namespace and capabilities"


def attempt(facts):
    path = facts["work"] + "/capable"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755))
    try:
        os.setxattr(path, "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
        return "gave a file CAP_NET_RAW"
    finally:
        os.unlink(path)
