"""Runs probes, each in a process of its own, and prints one JSON line for each. In a sandbox, or outside for canaries."""

import ctypes
import errno
import fcntl
import importlib.util
import json
import marshal
import os
import select
import signal
import struct
import sys
import termios
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 20  # seconds for one probe
# How a filter and a memory limit end what they stop. Any other signal is a fault of the probe's, unless it `SIGNALS` so.
STOPPED_BY = ("SIGSYS", "SIGKILL")


def load(name):
    sys.path[:] = [HERE] + [p for p in sys.path if p != HERE]
    spec = importlib.util.spec_from_file_location(f"probe_{name}", os.path.join(HERE, "probes", f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def attempt(module, facts):
    """What the probe achieved, and how it was answered."""
    try:
        detail = module.attempt(facts)
    except OSError as error:
        return None, errno.errorcode.get(error.errno, "") if error.errno else str(error)
    except MemoryError:
        return None, "out of memory"
    return (detail, "") if detail else (None, "nothing there")


def circumstances(module, facts):
    """For canaries alone: what somebody would have had to do wrong for the probe to succeed."""
    where, plant = getattr(module, "OUTSIDE", ""), getattr(module, "PLANT", "")
    if where == "nobody":
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    elif where == "user namespace":
        ctypes.CDLL(None).unshare(0x10000000)
    elif where == "terminal":
        fcntl.ioctl(os.openpty()[1], termios.TIOCSCTTY, 0)
    if plant == "environment":
        os.environ["API_KEY"] = facts["secret"]
    elif plant == "mount":
        ctypes.CDLL(None).mount(facts["read_only"].encode(), facts["work"].encode(), None, 4096, None)
    elif plant == "bytecode":
        source = os.path.join(facts["templates"], "planted.py")
        with open(os.path.join(facts["work"], "planted.pyc"), "wb") as planted:
            planted.write(bytes(16) + marshal.dumps(compile("", source, "exec")))
    elif plant == "key":
        ctypes.CDLL(None).syscall(248, b"user", b"belljar-escape", b"x", ctypes.c_long(1), ctypes.c_long(-2))
    elif plant == "binfmt_misc":
        ctypes.CDLL(None).mount(b"binfmt_misc", b"/proc/sys/fs/binfmt_misc", b"binfmt_misc", 0, None)
    elif plant == "disk":
        plant_disk(facts)
    elif plant:
        os.dup2(os.open(facts["host_directory"] if plant == "directory" else facts["secret_path"], os.O_RDONLY), 99)


def plant_disk(facts):
    """A file as a disk, until this process ends."""
    get_free, configure, let_go_at_end = 0x4C82, 0x4C0A, 4
    with open("/dev/loop-control") as control:
        disk = os.open(f"/dev/loop{fcntl.ioctl(control, get_free)}", os.O_RDWR)
    with open(os.path.join(facts["work"], "disk"), "wb+") as file:
        file.truncate(1 << 20)
        fcntl.ioctl(disk, configure, struct.pack("I56xI240x", file.fileno(), let_go_at_end))


def enter_namespaces():
    """Of its own, over which it has every capability: a browser's filter allows that."""
    user, network, until = 0x10000000, 0x40000000, time.monotonic() + LIMIT / 2
    uid, gid, libc = os.getuid(), os.getgid(), ctypes.CDLL(None, use_errno=True)
    while libc.unshare(user | network):
        # They are few, and those of the probe before take a moment to go.
        if ctypes.get_errno() != errno.ENOSPC or time.monotonic() > until:
            raise RuntimeError(f"no namespaces of its own: {os.strerror(ctypes.get_errno())}")
        time.sleep(0.02)
    for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{file}", "w") as written:
            written.write(text)


def silent(module, status, hung):
    """What to think of a probe that said nothing."""
    if hung:
        return "no answer" if hasattr(module, "HANGS") else f"BROKEN no answer for {LIMIT} s"
    if not os.WIFSIGNALED(status):
        return f"BROKEN ended with {os.waitstatus_to_exitcode(status)} and said nothing"
    name = signal.Signals(os.WTERMSIG(status)).name
    return f"killed by {name}" if name in (*STOPPED_BY, *getattr(module, "SIGNALS", ())) else f"BROKEN killed by {name}"


def one(name, facts):
    """In a child, so that a probe may be killed, or break what it runs in."""
    module = load(name)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            os.setsid()
            quiet = os.open("/dev/null", os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(quiet, fd)
            # The first to go when memory runs out, before whatever reports about it.
            try:
                with open("/proc/self/oom_score_adj", "w") as score:
                    score.write("1000")
            except OSError:
                pass
            try:
                if facts.get("canary"):
                    circumstances(module, facts)
                if facts.get("nested"):
                    enter_namespaces()
                result = attempt(module, facts)
            except BaseException as error:  # a broken probe must not look like one that was blocked
                result = None, f"BROKEN {type(error).__name__}: {error}"
            os.write(writer, json.dumps(result).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    said, ended, until = b"", False, time.monotonic() + LIMIT
    while not ended and select.select([reader], [], [], max(0, until - time.monotonic()))[0]:
        part = os.read(reader, 65536)
        said += part
        ended = not part or part.endswith(b"\n")
    os.close(reader)
    # What it left running may hold the pipe open longer than it lives.
    hung = not ended and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    for target in (-pid, pid):
        try:
            os.kill(target, signal.SIGKILL) if target > 0 else os.killpg(pid, signal.SIGKILL)
        except OSError:
            pass
    status = os.waitpid(pid, 0)[1]
    if said:
        return json.loads(said)
    return None, silent(module, status, hung)


def run(names, facts, out):
    for name in names:
        began = time.monotonic()
        escaped, answer = one(name, facts)
        out.write(json.dumps({"probe": name, "escaped": escaped, "answer": answer,
                              "seconds": round(time.monotonic() - began, 3)}) + "\n")
        out.flush()


def neighbour(names, facts):
    """The other side of probes that need one. Stays until it is ended."""
    reader, writer = os.pipe()
    for name in names:
        module = load(name)
        if os.fork() == 0:
            try:
                again = module.neighbour(facts)
            except BaseException:
                # Nobody shall wait for it.
                os.kill(os.getppid(), signal.SIGTERM)
                raise
            os.write(writer, b".")
            while True:
                time.sleep(0.02 if again else 60)
                if again:
                    again()
    for _ in names:
        os.read(reader, 1)
    print("ready", flush=True)
    while True:
        time.sleep(60)


def main(arguments):
    mode, path = arguments[:2]
    with open(path) as file:
        order = json.load(file)
    if mode == "neighbour":
        neighbour(order["neighbours"], order["facts"])
    elif len(arguments) > 2:
        # What reads this looks for the whole file: it appears at once.
        with open(arguments[2] + ".part", "w") as out:
            run(order["probes"], order["facts"], out)
        os.rename(arguments[2] + ".part", arguments[2])
    else:
        run(order["probes"], order["facts"], sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
