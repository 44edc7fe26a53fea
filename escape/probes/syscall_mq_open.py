"""Opens a POSIX message queue."""

from lib import reached

CLASS = "system calls"
INCIDENT = "CVE-2017-11176: a use after free in mq_notify()"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("mq_open", b"belljar\0", 0, 0, 0)
