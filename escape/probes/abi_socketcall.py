"""Opens a socket through the 32-bit socketcall, whose arguments lie in memory."""

from lib import machine_code

CLASS = "ABI"
INCIDENT = "the 32-bit socketcall slipped past a filter of socket families"
BLOCKED_BY = "seccomp, which ends a process that uses another ABI"


def attempt(facts):
    # push rbx; mov eax, 102; mov ebx, 1; xor ecx, ecx; int 0x80; pop rbx; ret  (socketcall(SYS_SOCKET, NULL))
    answer = machine_code(bytes.fromhex("53b866000000bb0100000031c9cd805bc3"))
    return f"socketcall() answered {answer}"
