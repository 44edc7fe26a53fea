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
import sys
import termios
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 20  # seconds for one probe; one that hangs got nowhere


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
    elif plant:
        os.dup2(os.open(facts["host_directory"] if plant == "directory" else facts["secret_path"], os.O_RDONLY), 99)


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
                result = attempt(module, facts)
            except BaseException as error:  # a broken probe must not look like one that was blocked
                result = None, f"BROKEN {type(error).__name__}: {error}"
            os.write(writer, json.dumps(result).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    said, until = b"", time.monotonic() + LIMIT
    while (left := until - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
        part = os.read(reader, 65536)
        if not part:
            break
        said += part
        # What it left running may hold the pipe open.
        if part.endswith(b"\n"):
            break
    os.close(reader)
    for target in (-pid, pid):
        try:
            os.kill(target, signal.SIGKILL) if target > 0 else os.killpg(pid, signal.SIGKILL)
        except OSError:
            pass
    status = os.waitpid(pid, 0)[1]
    if said:
        return json.loads(said)
    if os.WIFSIGNALED(status) and left > 0:
        return None, f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return None, "no answer"


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
            again = module.neighbour(facts)
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
