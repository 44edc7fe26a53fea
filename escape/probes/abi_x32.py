"""Makes a system call with the x32 interface."""

import ctypes
import errno

from lib import machine_code

CLASS = "ABI"
INCIDENT = "CVE-2014-0038; and filters whose list did not look at the bit that marks x32"
BLOCKED_BY = "seccomp"


def attempt(facts):
    # mov eax, 0x40000027; syscall; ret  (getpid)
    answer = ctypes.c_int32(machine_code(bytes.fromhex("b8270000400f05c3"))).value
    if answer == -errno.EPERM:
        raise OSError(errno.EPERM, "")
    return f"x32 getpid() answered {answer}"
