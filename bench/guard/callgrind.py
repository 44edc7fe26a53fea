"""A process under callgrind, and how many instructions it took for something."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "target/guard"
keep = False  # what callgrind writes
PATIENCE = 600  # seconds for anything; only a hang takes so long, even on a busy machine
# Copies of any size count by their vector instructions: by default glibc takes one that valgrind counts per byte on some
# processors and not on others.
TUNABLES = "glibc.cpu.x86_rep_movsb_threshold=1000000000:glibc.cpu.x86_rep_stosb_threshold=1000000000"


def available():
    return all(shutil.which(program) for program in ("valgrind", "vgdb"))


def shim():
    """The library that lets a program start itself anew; see program.c."""
    WORK.mkdir(parents=True, exist_ok=True)
    library = WORK / "program.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, Path(__file__).with_name("program.c"), "-ldl"], check=True)
    return library


def child(pid):
    """The one child of a process, as soon as there is one."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().split():
            return path.read_text().split()[0]
        time.sleep(0.05)
    sys.exit("unshare started nothing")


class Counted:
    """Use it as a context manager; `count` may be called as often as needed. With `alone`, in a process namespace of its own."""

    def __init__(self, command, env, launcher=(), alone=False, **popen):
        WORK.mkdir(parents=True, exist_ok=True)
        self.directory = Path(tempfile.mkdtemp(dir=WORK))
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={self.directory}/out.%p", f"--log-file={self.directory}/log",
                    f"--vgdb-prefix={self.directory}/vgdb"]
        self.process = subprocess.Popen([*launcher, *valgrind, *map(str, command)], env={**env, "GLIBC_TUNABLES": TUNABLES}, **popen)
        self.pid, self.dumps, self.enter = self.process.pid, 0, []
        if alone:
            # Its number is 1 in there, and whoever wants to speak to it has to go there.
            self.pid, self.enter = 1, ["nsenter", f"--target={child(self.process.pid)}", "--pid", "--mount"]

    def tell(self, order):
        done = subprocess.run([*self.enter, "vgdb", f"--vgdb-prefix={self.directory}/vgdb", f"--pid={self.pid}", order], capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            sys.exit(f"valgrind does not listen: {done.stderr.strip()[-500:]}\n{self.log()}")

    def log(self):
        path = self.directory / "log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else ""

    def count(self, work):
        """Instructions, in user space alone, from before the work to after it."""
        self.tell("zero")
        work()
        self.dumps += 1
        self.tell(f"dump {self.dumps}")
        path = self.directory / f"out.{self.pid}.{self.dumps}"
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = re.search(r"^(?:summary|totals): (\d+)", path.read_text(errors="replace") if path.exists() else "", re.M)
            if found:
                return int(found[1])
            time.sleep(0.05)
        sys.exit(f"callgrind wrote no figures into {path}: {os.listdir(self.directory)}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if keep:
            print(f"what callgrind wrote is in {self.directory}", flush=True)
        else:
            shutil.rmtree(self.directory, ignore_errors=True)
