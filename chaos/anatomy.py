"""The processes of a Belljar, seen from outside: which is which, how to hurt one, and what is left."""

import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/http"))

from harness import PATIENCE, Home, wait_until  # noqa: E402
from machine import command, processes  # noqa: E402

CGROUPS = Path("/sys/fs/cgroup")


class Machine:
    """What runs below one home."""

    def __init__(self, home):
        self.home = home

    def tree(self):
        return self.home.tree()

    def jailers(self):
        """Those that are pid 1 of their namespace: they hold the sandboxes."""
        return [pid for pid in self.tree() if "__jail" in command(pid) and inner_pid(pid) == 1]

    def watchdogs(self):
        """The jailers' first processes, which stay outside."""
        table = processes()
        return [table[pid][0] for pid in self.jailers() if pid in table and "__jail" in command(table[pid][0])]

    def guests(self):
        return [pid for pid in self.tree() if command(pid).startswith("belljar-guest")]

    def zygote(self):
        try:
            return self.home.zygote()
        except ValueError:
            return None

    def kernel(self, mark):
        """The interpreter that gave itself this name."""
        return next((pid for pid in self.tree() if name_of(pid) == mark), None)

    def guest_of(self, pid):
        world = namespace(pid)
        return next((guest for guest in self.guests() if world and namespace(guest) == world), None)

    def browsers(self):
        return [pid for pid in self.tree() if "chromium" in command(pid).split(" ")[0] or "headless-shell" in command(pid)]

    def run_directories(self):
        return sorted(path.name for path in (self.home.path / "run").glob("*"))

    def group_directories(self):
        """Cgroups of this home's instances, living or dead: instance → its directories, one per hierarchy."""
        self.home.instances |= set(self.run_directories())
        found = {}
        # Others come and go meanwhile; os.walk does not mind.
        for top, below, _ in os.walk(CGROUPS):
            for name in [name for name in below if name.startswith("belljar-")]:
                below.remove(name)
                if (instance := name.removeprefix("belljar-")) in self.home.instances:
                    found.setdefault(instance, []).append(Path(top, name))
        return found

    def groups(self):
        """instance → names of its sandboxes' cgroups."""
        return {instance: {child for directory in directories for child in next(os.walk(directory), (0, [], 0))[1]}
                for instance, directories in self.group_directories().items()}


def inner_pid(pid):
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    return next((int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:")), None)


def name_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


def namespace(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def state_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def is_gone(pid):
    """A zombie still has a parent that has not looked; it is dead all the same."""
    return state_of(pid) in (None, "Z", "X")


def send(pid, sig):
    try:
        os.kill(pid, sig)
        return True
    except (ProcessLookupError, TypeError):
        return False


def kill(*pids):
    """Kills them and waits until they are gone, so that nobody looks too early."""
    pids = [pid for pid in pids if pid]
    for pid in pids:
        send(pid, signal.SIGKILL)
    for pid in pids:
        if not wait_until(lambda pid=pid: is_gone(pid), 30):
            raise AssertionError(f"process {pid} ({command(pid)}) does not die")
    return bool(pids)


def descriptors(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def threads(pid, *names):
    found = 0
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            found += (task / "comm").read_text().strip() in names
        except OSError:
            pass
    return found


def children(pid):
    """All of them, the dead that nobody buried included."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append((int(entry.name), fields[0]))
    return found


__all__ = ["PATIENCE", "Home", "wait_until"]
