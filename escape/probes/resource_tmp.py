"""Writes more to /tmp than it may."""

import os

CLASS = "resources"
INCIDENT = "a /tmp without a limit is the host's memory"
BLOCKED_BY = "size of the file system"


def attempt(facts):
    path = facts["tmp"] + "/belljar-escape-big"
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(facts["workspace"] * 2 >> 20):
                if file.write(bytes(1 << 20)) < 1 << 20:
                    raise OSError(28, "no space left")
        return "wrote twice its size"
    finally:
        os.unlink(path)
