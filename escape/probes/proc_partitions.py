"""Reads partitions of the host's disks."""

CLASS = "/proc"
INCIDENT = "information, not a way out; listed so that nobody thinks it is hidden"
BLOCKED_BY = "nothing: see the known weaknesses"


def attempt(facts):
    lines = open("/proc/partitions").read().splitlines()[2:]
    return f"{len(lines)} partitions" if lines else None
