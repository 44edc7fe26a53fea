"""What probes need and a machine may lack, looked for without the probes: only what is missing here excuses a canary."""

import errno
import os
import socket
import subprocess
from pathlib import Path

MISSING = (errno.ENOENT, errno.ENODEV, errno.ENXIO)


def can_be_opened(path):
    """Whether the kernel has something there, be it closed to us: a device may be a name without a driver."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno not in MISSING
    return True


def has_family(number):
    try:
        socket.socket(number, socket.SOCK_STREAM).close()
    except OSError as error:
        return error.errno != errno.EAFNOSUPPORT
    return True


def has_capability(number):
    sets = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(sets["CapEff"], 16) >> number & 1)


def number_in(path):
    return int(Path(path).read_text())


def succeeds(*command):
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


CHECKS = {
    "a default route": lambda: "00000000" in (line.split()[1] for line in Path("/proc/net/route").open()),
    "IPv6": lambda: " lo\n" in Path("/proc/net/if_inet6").read_text(),
    "vsock": lambda: has_family(socket.AF_VSOCK),
    "binfmt_misc": lambda: "\tbinfmt_misc\n" in Path("/proc/filesystems").read_text(),
    "kernel addresses that root may read": lambda: number_in("/proc/sys/kernel/kptr_restrict") < 2,
    "a limit of pipe buffers per user": lambda: number_in("/proc/sys/fs/pipe-user-pages-soft") > 0,
    "CAP_SYS_RESOURCE": lambda: has_capability(24),
    "a cgroup that may have real-time processes": lambda: succeeds("chrt", "-f", "1", "true"),
}


def lacks(probe):
    """What the probe needs and this machine does not have, if so."""
    needed = getattr(probe, "NEEDS", None)
    if needed is None:
        return None
    try:
        there = can_be_opened(needed) if needed.startswith("/") else CHECKS[needed]()
    except FileNotFoundError:
        there = False
    return None if there else needed
