"""Sets up a ring of system calls that no filter sees."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2022-29582, CVE-2023-2598; Google switched io_uring off after it was used in 60 % of the exploits submitted to it"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("io_uring_setup", 0, 0)
