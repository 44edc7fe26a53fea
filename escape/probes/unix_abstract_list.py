"""Lists the host's Unix sockets."""

CLASS = "Unix sockets"
INCIDENT = "/proc/net/unix showed every abstract name"
BLOCKED_BY = "network namespace"


def attempt(facts):
    return "found the host's socket" if facts["abstract"] in open("/proc/net/unix").read() else None
