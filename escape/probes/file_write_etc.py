"""Creates a file that the host would read at its next login: it did not exist, so nothing protected it."""

import os

CLASS = "file system"
INCIDENT = "a protected file that did not exist yet was created from inside"
BLOCKED_BY = "read-only root"
OUTSIDE = "namespace"


def attempt(facts):
    path = "/etc/belljar-escape-probe.preload"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    os.unlink(path)
    return "made a file in /etc"
