"""Opens one of the host's programs for writing."""

from lib import can_write

CLASS = "file system"
INCIDENT = "CVE-2022-0847 (Dirty Pipe) made read-only files writable; this is the honest way"
BLOCKED_BY = "read-only root"
OUTSIDE = "namespace"


def attempt(facts):
    return can_write("/usr/bin/env")
