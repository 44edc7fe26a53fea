"""Makes a system call with the 32-bit interface, whose numbers mean other calls."""

from lib import machine_code

CLASS = "ABI"
INCIDENT = "filters that forgot to look at the architecture: a 32-bit number passes as a harmless 64-bit one"
BLOCKED_BY = "seccomp, which ends a process that uses another ABI"


def attempt(facts):
    # push rbx; mov eax, 20; int 0x80; pop rbx; ret  (getpid)
    pid = machine_code(bytes.fromhex("53b814000000cd805bc3"))
    return f"32-bit getpid() answered {pid}"
