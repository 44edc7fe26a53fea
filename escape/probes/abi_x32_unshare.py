"""Calls unshare with the x32 interface."""

import ctypes
import errno

from lib import machine_code

CLASS = "ABI"
INCIDENT = "filters whose list did not look at the bit that marks x32"
BLOCKED_BY = "seccomp"


def attempt(facts):
    # mov eax, 0x40000110; xor edi, edi; syscall; ret
    answer = ctypes.c_int32(machine_code(bytes.fromhex("b81001004031ff0f05c3"))).value
    if answer == -errno.EPERM:
        raise OSError(errno.EPERM, "")
    return f"x32 unshare() answered {answer}"
