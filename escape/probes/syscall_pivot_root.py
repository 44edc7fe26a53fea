"""Changes the root of the mount namespace."""

from lib import reached

CLASS = "system calls"
INCIDENT = "container runtimes whose filter forgot it"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("pivot_root", b"/tmp\0", b"/tmp\0")
