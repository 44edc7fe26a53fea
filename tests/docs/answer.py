"""answer.py WORD COMMAND...: runs a command on a terminal, and answers its question."""

import os
import pty
import sys

word, command, said = sys.argv[1], sys.argv[2:], b""
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(command[0], command)
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:  # how a terminal says that nobody is at the other end any more
        break
    os.write(1, part)
    said += part
    if word and said.rstrip().endswith(b"[y/N]"):
        os.write(terminal, word.encode() + b"\n")
        word = ""
_, status = os.waitpid(pid, 0)
sys.exit("it did not ask" if word else os.waitstatus_to_exitcode(status))
