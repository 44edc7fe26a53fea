"""Takes a mount away to see what it covers."""

from lib import reached

CLASS = "system calls"
INCIDENT = "masked files of containers appeared after umount(2)"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("umount2", b"/nowhere\0", 0)
