"""Sets the machine's clock. The probe's clock does not exist, which only the kernel would notice."""

from lib import reached

CLASS = "system calls"
INCIDENT = "the clock is not in any namespace"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("clock_settime", 99, 0)
