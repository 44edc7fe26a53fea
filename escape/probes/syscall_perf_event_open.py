"""Opens a performance counter."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2013-2094: an index from perf_event_open() wrote anywhere in the kernel"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("perf_event_open", 0, 0, -1, -1, 0)
