"""Starts more threads than it may have."""

import threading
import time

CLASS = "resources"
INCIDENT = "limits that count processes alone"
BLOCKED_BY = "process limit"


def attempt(facts):
    threading.stack_size(65536)
    for _ in range(facts["processes"] * 3):
        try:
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        except RuntimeError as error:
            raise OSError(11, str(error)) from None
    return "all of them started"
