"""Overwrites the program that started it."""

import errno

from lib import can_write

CLASS = "/proc"
INCIDENT = "CVE-2019-5736: runc was overwritten through /proc/self/exe"
BLOCKED_BY = "pid namespace, and a guest in a sealed memory file"
OUTSIDE = "namespace"


def attempt(facts):
    try:
        return can_write("/proc/1/exe")
    except OSError as error:
        # A program that runs cannot be written; it would have to end first.
        if error.errno != errno.ETXTBSY:
            raise
        return "only its running protects it"
