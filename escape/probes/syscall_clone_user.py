"""Makes a child in a user namespace of its own."""

import os

from lib import call

CLASS = "system calls"
INCIDENT = "filters that looked at unshare(2) alone"
BLOCKED_BY = "seccomp, which looks at clone's flags"
OUTSIDE = "namespace"


def attempt(facts):
    pid = call("clone", 0x10000000 | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "a child in a new user namespace"
