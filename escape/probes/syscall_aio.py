"""Sets up asynchronous input and output, whose requests are system calls in disguise."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2019-10125; io_submit() reached files that a filter did not see"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("io_setup", 0, 0)
