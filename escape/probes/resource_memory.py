"""Takes more memory than it may have."""

CLASS = "resources"
INCIDENT = "the most common way to bring a machine down"
BLOCKED_BY = "memory limit"


def attempt(facts):
    kept = bytearray(facts["memory"] * 2)
    kept[::4096] = b"x" * len(kept[::4096])
    return f"has {len(kept) >> 20} MiB"
