"""Lists the host's /tmp."""

import os

CLASS = "file system"
INCIDENT = "systemd's, X11's and agents' sockets lie there"
BLOCKED_BY = "private file systems"


def attempt(facts):
    return "found the host's directory" if os.path.basename(facts["host_directory"]) in os.listdir("/tmp") else None
