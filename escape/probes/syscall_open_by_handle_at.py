"""Opens a file by its inode number, past every directory."""

from lib import reached

CLASS = "system calls"
INCIDENT = "shocker.c, 2014: a container read the host's /etc/shadow this way"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("open_by_handle_at", -1, 0, 0)
