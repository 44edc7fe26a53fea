"""Makes the read-only /usr writable."""

from lib import reached

CLASS = "system calls"
INCIDENT = "a read-only volume was remounted from inside the sandbox"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("mount", 0, b"/usr\0", 0, 32 | 4096, 0)
