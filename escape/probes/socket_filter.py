"""Attaches a BPF program to a socket."""

import ctypes
import socket
import struct

PROGRAM = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xFFFF))

CLASS = "socket families"
INCIDENT = "classic BPF is a program in the kernel too, and its memory is the whole machine's"
BLOCKED_BY = "seccomp"


def attempt(facts):
    with socket.socket(socket.AF_UNIX) as ours:
        ours.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HxxxxxxP", 1, ctypes.addressof(PROGRAM)))
    return "a BPF program was attached"
