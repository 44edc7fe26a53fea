"""Sees the machine's timers and process names."""

from lib import read_all

CLASS = "/proc"
INCIDENT = "/proc/timer_list named processes of other containers"
BLOCKED_BY = "user namespace, covered file"
NEEDS = "/proc/timer_list"


def attempt(facts):
    return "read the machine's timers" if read_all("/proc/timer_list") else None
