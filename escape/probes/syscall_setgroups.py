"""Drops a group that exists to deny something, or takes one."""

import os

CLASS = "system calls"
INCIDENT = "CVE-2014-8989: setgroups() in a user namespace shed a group that was there to forbid"
BLOCKED_BY = "capabilities"


def attempt(facts):
    os.setgroups([6])
    return "is in the group of disks"
