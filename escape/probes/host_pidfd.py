"""Opens a descriptor of a process of the host."""

import os

CLASS = "the host"
INCIDENT = "pidfd_open with the numbers of another namespace"
BLOCKED_BY = "pid namespace"


def attempt(facts):
    os.close(os.pidfd_open(facts["host_pid"]))
    return "opened"
