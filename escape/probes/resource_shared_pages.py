"""Takes shared memory, which limits per process may not count."""

import mmap

CLASS = "resources"
INCIDENT = "limits that look at private memory alone"
BLOCKED_BY = "memory limit"


def attempt(facts):
    kept = mmap.mmap(-1, facts["memory"] * 2, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    kept[::4096] = b"x" * (len(kept) // 4096)
    return f"has {len(kept) >> 20} MiB"
