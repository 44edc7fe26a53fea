"""Changes the memory of another process by advice."""

from lib import reached

CLASS = "system calls"
INCIDENT = "a sibling of ptrace(2) that filters forgot"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("process_madvise", -1, 0, 0, 0, 0)
