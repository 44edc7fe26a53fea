"""Opens the hypervisor."""

import os

from lib import can_open

CLASS = "file system"
INCIDENT = "CVE-2021-22543 and others in KVM, from a container that had the device"
BLOCKED_BY = "root directory, which has six devices"
NEEDS = "/dev/kvm"


def attempt(facts):
    return can_open("/dev/kvm", os.O_RDWR)
