"""Raises its own priority above everybody's."""

import os

CLASS = "system calls"
INCIDENT = "a neighbour with a better priority starves the rest"
BLOCKED_BY = "capabilities and rlimits"


def attempt(facts):
    os.setpriority(os.PRIO_PROCESS, 0, -10)
    return "runs with a nice value of -10"
