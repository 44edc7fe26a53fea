"""Learns from its own mount table where a volume lies on the host."""

CLASS = "/proc"
INCIDENT = "names of users and projects in paths"
BLOCKED_BY = "nothing: the kernel names the source of every mount"
OUTSIDE = "namespace"
PLANT = "mount"


def attempt(facts):
    text = open("/proc/self/mountinfo").read()
    return "the mount table names a shared directory" if facts["host_directory"] in text else None
