"""Names a program that the kernel starts: to load modules, or to power off."""

from lib import can_write

CLASS = "/proc"
INCIDENT = "the last step of most kernel exploits"
BLOCKED_BY = "user namespace"


def attempt(facts):
    refused = None
    for name in ("modprobe", "poweroff_cmd"):
        try:
            return can_write(f"/proc/sys/kernel/{name}")
        except OSError as error:
            refused = error
    raise refused
