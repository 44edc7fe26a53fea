"""Writes to /usr, which the host executes."""

import os

CLASS = "file system"
INCIDENT = "a bind that was not read-only"
BLOCKED_BY = "read-only root"
OUTSIDE = "namespace"


def attempt(facts):
    path = "/usr/share/belljar-escape-probe"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    os.unlink(path)
    return "made a file in /usr"
