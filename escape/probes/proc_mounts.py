"""Learns from its own mount table where the server keeps its files."""

CLASS = "/proc"
INCIDENT = "names of users and projects in paths"
BLOCKED_BY = "root directory, made of overlays that name no path of the host"
OUTSIDE = "namespace"
PLANT = "mount"


def attempt(facts):
    text = open("/proc/self/mountinfo").read()
    return "the mount table names a directory of the server" if facts["templates"] in text else None
