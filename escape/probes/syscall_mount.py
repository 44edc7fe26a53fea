"""Mounts a file system."""

from lib import reached

CLASS = "system calls"
INCIDENT = "every escape that begins with a mount, from cgroup release_agent (CVE-2022-0492) to overlayfs (CVE-2023-0386)"
BLOCKED_BY = "seccomp"
OUTSIDE = "namespace"


def attempt(facts):
    return reached("mount", b"none\0", b"/nowhere\0", b"tmpfs\0", 0, 0)
