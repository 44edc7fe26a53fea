"""Reads and writes the kernel's objects in /sys."""

from lib import can_open

CLASS = "file system"
INCIDENT = "CVE-2022-0492 (release_agent), uevent_helper: files in /sys that name a program for the kernel to start"
BLOCKED_BY = "root directory"


def attempt(facts):
    return can_open("/sys/kernel/uevent_seqnum")
