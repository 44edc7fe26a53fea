"""Lists the host's cgroups, to move out of its own."""

import os

CLASS = "file system"
INCIDENT = "CVE-2022-0492: release_agent"
BLOCKED_BY = "root directory"


def attempt(facts):
    found = os.listdir("/sys/fs/cgroup")
    return f"found {len(found)} entries" if found else None
