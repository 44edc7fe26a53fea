"""Writes more to a directory shared for writing than to any place of its own."""

import os

CLASS = "volumes"
INCIDENT = "a disk of the host filled from inside"
BLOCKED_BY = "nothing: no limit of sizes holds there"


def attempt(facts):
    path = f"{facts['project_inside']}/big"
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(facts["workspace"] * 2 >> 20):
                if file.write(bytes(1 << 20)) < 1 << 20:
                    raise OSError(28, "no space left")
        return "wrote twice the size of its workspace"
    finally:
        os.unlink(path)
