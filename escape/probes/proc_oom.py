"""Makes itself the last to be killed when memory runs out."""

from lib import can_write

CLASS = "/proc"
INCIDENT = "a hostile neighbour survives, the others die"
BLOCKED_BY = "capabilities"
NEEDS = "CAP_SYS_RESOURCE"


def attempt(facts):
    return can_write("/proc/self/oom_score_adj", b"-1000")
