"""Walks up from a volume's descriptor."""

import os

CLASS = "volumes"
INCIDENT = "CVE-2019-19921, CVE-2021-30465 (runc): paths of volumes that led elsewhere"
BLOCKED_BY = "mount namespace"


def attempt(facts):
    fd = os.open(facts["read_only"], os.O_RDONLY | os.O_DIRECTORY)
    name = os.path.basename(facts["host_directory"]) + "/secret"
    for up in ("../", "../../", "../../../"):
        try:
            secret = os.open(up + name, os.O_RDONLY, dir_fd=fd)
        except FileNotFoundError:
            continue
        return "read the host's secret" if facts["secret"].encode() in os.read(secret, 4096) else None
