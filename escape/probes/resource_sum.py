"""Takes more memory than it may have, a little in each of several processes."""

from lib import in_a_child

CLASS = "resources"
INCIDENT = "limits that look at one process"
BLOCKED_BY = "memory limit"
PARTS = 8


def attempt(facts):
    take(PARTS, facts["memory"] * 2 // PARTS)
    return f"{PARTS} processes have {facts['memory'] * 2 >> 20} MiB"


def take(parts, size):
    kept = [bytearray(size)]
    kept[0][::4096] = b"x" * len(kept[0][::4096])

    def go_on():
        kept.clear()  # In the child alone.
        take(parts - 1, size)
    if parts > 1:
        in_a_child(go_on)
