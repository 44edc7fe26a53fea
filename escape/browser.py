#!/usr/bin/env python3
"""Stands in for Chromium: the server starts it where it would start one, under the same filter, and it runs probes."""

import os
import sys

INSIDE, ORDER, RESULTS = "/volumes/suite/inside.py", "/workspace/escape-order", "/workspace/escape-results"


def main():
    try:
        # The guest tries twice before it believes that this is no browser.
        os.close(os.open(f"{ORDER}-taken", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if os.fork() == 0:
        os.setsid()
        os.closerange(3, 5)
        said = os.open(f"{RESULTS}-said", os.O_CREAT | os.O_WRONLY, 0o600)
        for fd in (1, 2):
            os.dup2(said, fd)
        os.close(said)
        with open(ORDER) as order:
            os.execvp("python3", ["python3", INSIDE, "run", order.read(), RESULTS])


if __name__ == "__main__":
    print("Stand-in for Chromium") if "--version" in sys.argv else main()
