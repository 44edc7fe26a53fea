"""Makes a file with a setuid bit through openat2, whose mode a filter cannot see."""

import ctypes
import os

from lib import call

CLASS = "system calls"
INCIDENT = "filters that looked at the modes of open(2) alone"
BLOCKED_BY = "seccomp, which says that there is no openat2"


def attempt(facts):
    path = facts["work"] + "/setuid"
    how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o4755, 0)
    fd = call("openat2", -100, path.encode() + b"\0", how, 24)
    mode = os.fstat(fd).st_mode
    os.unlink(path)
    return "a setuid file was made" if mode & 0o4000 else None
