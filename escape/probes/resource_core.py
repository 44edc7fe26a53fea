"""Lets the kernel write core files."""

import errno
import resource

CLASS = "resources"
INCIDENT = "core dumps of a sandbox on the host's disk, by the host's core_pattern"
BLOCKED_BY = "rlimits"


def attempt(facts):
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))
    except ValueError as error:
        raise OSError(errno.EPERM, str(error)) from None
    return "core files are allowed"
