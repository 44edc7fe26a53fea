"""What processes take, as /proc tells it."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path


def family(*pids):
    """The processes and all their descendants."""
    children = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                parent = int(Path(entry.path, "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, generation = [], list(pids)
    while generation:
        found += generation
        generation = [child for parent in generation for child in children.get(parent, [])]
    return found


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def watching_memory():
    """Processor seconds that the kernel's own look at which memory is in use (DAMON) has taken; None where it does not look."""
    seconds = None
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and Path(entry.path, "comm").read_text().startswith("kdamond"):
                times = Path(entry.path, "stat").read_text().rsplit(")", 1)[1].split()[11:13]
                seconds = (seconds or 0) + sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return seconds


def end(process):
    """Asks it to end, and ends it and all it started if it does not."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        kill(process)


def kill(process):
    """Ends it and all it started."""
    if process.poll() is None:
        for pid in family(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(30)


def proportional(pids):
    """Memory of the processes, pages shared among them counted once."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1]) * 1024
    return total


def kernel_memory(pids):
    """What the kernel holds for our sandboxes, as far as cgroups tell."""
    total, seen = 0, set()
    for pid in pids:
        try:
            memberships = Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            continue
        for _, controllers, path in (line.split(":", 2) for line in memberships.splitlines()):
            if "/belljar-" not in path or path in seen or controllers not in ("memory", ""):
                continue
            seen.add(path)
            for top in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
                directory = Path(top + path)
                try:
                    total += int((directory / "memory.kmem.usage_in_bytes").read_text())
                    break
                except OSError:
                    pass
                try:
                    total += int(re.search(r"^kernel (\d+)", (directory / "memory.stat").read_text(), re.M)[1])
                    break
                except (OSError, TypeError):
                    pass
    return total


def memory(*pids):
    everybody = family(*pids)
    return proportional(everybody) + kernel_memory(everybody)


def peak(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def cpu(*pids):
    """Seconds of processor time of the processes and their descendants, to the nanosecond; that of the dead is not in it."""
    total = 0
    for pid in family(*pids):
        try:
            for task in os.scandir(f"/proc/{pid}/task"):
                total += int(Path(task.path, "schedstat").read_text().split()[0])
        except (OSError, IndexError):
            continue
    return total / 1e9


def own(pid):
    """Seconds of processor time of the process alone."""
    return sum(int(Path(task.path, "schedstat").read_text().split()[0]) for task in os.scandir(f"/proc/{pid}/task")) / 1e9


def spent(*pids):
    """Seconds of processor time of the processes, their descendants, and all whose end these have been told of: of the dead to a
    hundredth of a second for each process that buried some."""
    total = cpu(*pids)
    for pid in family(*pids):
        with contextlib.suppress(OSError):
            buried = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[13:15]
            total += sum(map(int, buried)) / os.sysconf("SC_CLK_TCK")
    return total


@contextlib.contextmanager
def one_processor(*pids):
    """Keeps the processes and their descendants on one processor."""
    everybody = family(*pids)
    before = os.sched_getaffinity(pids[0])
    place(everybody, {min(before)})
    try:
        yield
    finally:
        place(everybody, before)


def place(pids, processors):
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(task), processors)


def woken_elsewhere():
    """How often one processor has interrupted another so far; None where that is not counted."""
    lines = re.findall(r"^ *(?:RES|CAL): (.*)", Path("/proc/interrupts").read_text(), re.M)
    return sum(int(word) for line in lines for word in line.split() if word.isdigit()) if lines else None


def available():
    return int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
