"""Sets the memory policy of a range."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2017-7616: mbind() gave away the kernel's stack"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("mbind", 0, 0, 0, 0, 0, 1 << 30)
