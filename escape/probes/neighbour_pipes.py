"""Finds the kernel's pipe buffers used up by another sandbox."""

import fcntl
import os

CLASS = "neighbours"
INCIDENT = "what the kernel counts per user is shared by all of that user's sandboxes"
BLOCKED_BY = "a user of its own for each sandbox; an ordinary user has one for all"
OUTSIDE = "nobody"
NEEDS = "a limit of pipe buffers per user"
KEPT = []


def neighbour(facts):
    if os.geteuid() == 0:
        # Outside. Root has no such limit.
        os.setresuid(65534, 65534, 65534)
    try:
        for _ in range(400):
            KEPT.append(os.pipe())
            fcntl.fcntl(KEPT[-1][1], fcntl.F_SETPIPE_SZ, 1 << 20)
    except PermissionError:
        return


def attempt(facts):
    _, writer = os.pipe()
    try:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
    except PermissionError:
        return "a neighbour has used up the pipe buffers"
