"""Sends a signal to a process of the host."""

import os

CLASS = "the host"
INCIDENT = "containers that share the host's pid namespace, as the same user"
BLOCKED_BY = "pid namespace"


def attempt(facts):
    os.kill(facts["host_pid"], 0)
    return "could send a signal"
