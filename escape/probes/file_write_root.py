"""Makes a directory in /, for a mount or a trap."""

import os

CLASS = "file system"
INCIDENT = "a protected file that did not exist yet was created from inside"
BLOCKED_BY = "read-only root"
OUTSIDE = "namespace"


def attempt(facts):
    os.mkdir("/belljar-escape-probe")
    os.rmdir("/belljar-escape-probe")
    return "made a directory in /"
