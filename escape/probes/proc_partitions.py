"""Reads partitions of the host's disks."""

CLASS = "/proc"
INCIDENT = "sizes and names of the host's disks"
BLOCKED_BY = "covered file"


def attempt(facts):
    lines = open("/proc/partitions").read().splitlines()[2:]
    return f"{len(lines)} partitions" if lines else None
