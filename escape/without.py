"""Runs a command on a machine that lacks something: without.py WHAT COMMAND…

As root in a container, in a container with Docker's own filter, on a kernel built without.
"""

import ctypes
import errno
import os
import struct
import sys

# System calls of x86-64, how each is answered, and the bits or the value of its first argument if only some are meant.
NAMESPACES, SET_SECCOMP = 0x7E020000, 22
DENIED = {
    "nothing": [],
    "namespaces": [(272, errno.EPERM), (56, errno.EPERM, "any of", NAMESPACES), (435, errno.ENOSYS)],
    "mounts": [(number, errno.EPERM) for number in (155, 165, 428, 429, 430, 442)],
    "seccomp": [(317, errno.ENOSYS), (157, errno.EINVAL, "equal", SET_SECCOMP)],
    "landlock": [(444, errno.ENOSYS)],
}
LOAD, EQUAL, ANY_OF, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER, FIRST_ARGUMENT, ALLOW, FAIL = 0, 16, 0x7FFF0000, 0x50000
CAP_SYS_ADMIN, PR_CAPBSET_DROP, FILTER = 21, 24, 2


def instruction(code, value, then=0, otherwise=0):
    return struct.pack("HBBI", code, then, otherwise, value)


def program(rules):
    code = [instruction(LOAD, NUMBER)]
    for number, answer, *condition in rules:
        denied = [instruction(RETURN, FAIL | answer)]
        if condition:
            test = ANY_OF if condition[0] == "any of" else EQUAL
            denied = [instruction(LOAD, FIRST_ARGUMENT), instruction(test, condition[1], 0, 1), *denied,
                      instruction(LOAD, NUMBER)]
        code += [instruction(EQUAL, number, 0, len(denied)), *denied]
    return [*code, instruction(RETURN, ALLOW)]


def main(what, *command):
    libc = ctypes.CDLL(None, use_errno=True)
    if what == "capability":
        failed = libc.prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)
    else:
        code = program(DENIED[what])
        kept = ctypes.create_string_buffer(b"".join(code))
        header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(kept)))
        # Root needs no promise about new privileges for this, and the promise would be one more thing that is different.
        failed = libc.prctl(SET_SECCOMP, FILTER, header, 0, 0)
    if failed:
        raise OSError(ctypes.get_errno(), what)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
