"""Raises its own priority above everybody's."""

import os

CLASS = "system calls"
INCIDENT = "a neighbour with a better priority starves the rest"
BLOCKED_BY = "capabilities and rlimits"


def attempt(facts):
    now = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, now - 1)
    return "has a better priority" if os.getpriority(os.PRIO_PROCESS, 0) < now else None
