"""Changes its root, the first half of the oldest escape."""

from lib import reached

CLASS = "system calls"
INCIDENT = "chroot(2) twice, with a directory held open, leaves a chroot"
BLOCKED_BY = "seccomp"


def attempt(facts):
    return reached("chroot", b"/nowhere\0")
