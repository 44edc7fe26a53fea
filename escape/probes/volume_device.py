"""Opens a device node that lies in a volume."""

from lib import can_open

CLASS = "volumes"
INCIDENT = "device nodes on a shared disk"
BLOCKED_BY = "nodev"


def attempt(facts):
    return can_open(facts["read_only"] + "/null")
