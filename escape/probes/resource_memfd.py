"""Takes memory as a file in no file system."""

import os

CLASS = "resources"
INCIDENT = "limits that look at mappings alone"
BLOCKED_BY = "memory limit"


def attempt(facts):
    file = os.memfd_create("belljar")
    for _ in range(facts["memory"] * 2 >> 20):
        os.write(file, bytes(1 << 20))
    return "wrote twice its memory"
