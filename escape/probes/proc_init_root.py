"""Goes through the root of pid 1."""

from lib import holds_secret

CLASS = "/proc"
INCIDENT = "/proc/1/root of a shared pid namespace is the host"
BLOCKED_BY = "pid namespace, and a guest that cannot be read"
OUTSIDE = "namespace"


def attempt(facts):
    return holds_secret("/proc/1/root" + facts["secret_path"], facts)
