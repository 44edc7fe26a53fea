"""Lists kernel keys."""

CLASS = "/proc"
INCIDENT = "keys of other containers of the same user"
BLOCKED_BY = "user namespace"
NEEDS = "/proc/keys"
PLANT = "key"


def attempt(facts):
    lines = [line for line in open("/proc/keys").read().splitlines() if line]
    return f"{len(lines)} keys" if lines else None
