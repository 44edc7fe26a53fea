"""Learns where on the host a volume is, from its own mount table."""

CLASS = "volumes"
INCIDENT = "names of users and projects in paths"
BLOCKED_BY = "nothing: see the known weaknesses"
OUTSIDE = "namespace"
PLANT = "mount"


def attempt(facts):
    text = open("/proc/self/mountinfo").read()
    return "the mount table names a directory of the host" if facts["host_directory"] in text else None
