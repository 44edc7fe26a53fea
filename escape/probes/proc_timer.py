"""Sees the machine's timers and process names."""

from lib import can_open

CLASS = "/proc"
INCIDENT = "/proc/timer_list named processes of other containers"
BLOCKED_BY = "user namespace"
NEEDS = "/proc/timer_list"


def attempt(facts):
    return can_open("/proc/timer_list")
