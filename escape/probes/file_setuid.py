"""Makes a file that runs with its owner's rights, on a disk of the host."""

import os

CLASS = "file system"
INCIDENT = "a setuid file on a shared volume, started by somebody outside"
BLOCKED_BY = "seccomp"


def attempt(facts):
    path = facts["work"] + "/setuid"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755))
    try:
        os.chmod(path, 0o4755)
        return "made a setuid file"
    finally:
        os.unlink(path)
