"""Starts more processes than it may have."""

import os
import time

CLASS = "resources"
INCIDENT = "the fork bomb"
BLOCKED_BY = "process limit"


def attempt(facts):
    children = 0
    while children < facts["processes"] * 3:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        children += 1
    return f"{children} processes"
