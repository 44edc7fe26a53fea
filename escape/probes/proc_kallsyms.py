"""Reads the kernel's addresses."""

CLASS = "/proc"
INCIDENT = "every kernel exploit needs them"
BLOCKED_BY = "user namespace"
NEEDS = "kernel addresses that root may read"


def attempt(facts):
    with open("/proc/kallsyms") as file:
        addresses = {line.split()[0] for line, _ in zip(file, range(100))}
    return "addresses are shown" if any(int(address, 16) for address in addresses) else None
