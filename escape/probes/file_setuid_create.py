"""The same while the file is made."""

import os

CLASS = "file system"
INCIDENT = "filters that looked at chmod alone"
BLOCKED_BY = "seccomp"


def attempt(facts):
    path = facts["work"] + "/setuid-created"
    os.umask(0)
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o4755)
    mode = os.fstat(fd).st_mode
    os.unlink(path)
    return "made a setuid file" if mode & 0o4000 else None
