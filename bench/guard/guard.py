#!/usr/bin/env python3
"""Instructions per call of the hot paths, and pages of an interpreter, against recorded figures: a regression fails without any clock.

    bench/guard/guard.py              fails when a path takes more than it may
    bench/guard/guard.py --record     writes what it takes now into figures.json

The server, the guest and the Python kernel run for real, each once under callgrind; only user space is counted. Counts differ a
little with the C library and the processor, and a lot with the version of Python, so there is a margin, and figures for each Python.
Where there is no valgrind it exits with 77, and fails in CI, where nothing that was recorded may be left out either.
"""

import argparse
import array
import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "speed"))
import callgrind
import driver
import proc
from callgrind import PATIENCE, ROOT, Counted

FIGURES = Path(__file__).with_name("figures.json")
BELLJAR = os.path.abspath(os.environ.get("BELLJAR") or ROOT / "target/release/belljar")
GUEST = ROOT / "target/staged/belljar-guest"
KERNELS = ROOT / "crates/belljar-guest/kernels/python"
PYTHON, SITE = os.environ.get("BELLJAR_PYTHON"), os.environ.get("BELLJAR_PYTHON_SITE")
TABLE = "import pandas\ndf = pandas.DataFrame({'a': [1, 2, 3]})\nlen(df)"
WARM, CALLS, WINDOWS = 40, 20, 3
CROWD = 200
BESIDE = f" beside {CROWD} contexts"
CROWDED = 1.03  # of what the same takes without them
FORKS = 8
MARGIN = 1.15
PAGE = os.sysconf("SC_PAGE_SIZE")
# Without matplotlib, whose import would take a minute under callgrind; a cell that draws nothing never asks for it.
START_KERNEL = """
import sys
directory, wire = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, directory)
sys.modules["matplotlib"] = None
import belljar_kernel
belljar_kernel.prepare()
belljar_kernel.serve(wire)
"""
# The guest may end every process that it sees, so there must be none but itself. It finds its maker at descriptor 3.
ALONE = """
import os, sys
if os.getpid() != 1 or [name for name in os.listdir("/proc") if name.isdigit()] != ["1"]:
    sys.exit("the guest runs in a process namespace of its own, or not at all")
os.dup2(int(sys.argv[1]), 3)
os.execvp(sys.argv[2], sys.argv[2:])
"""
KERNEL_ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": SITE or "", "PYTHONHASHSEED": "0", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}


class Frames:
    """Our frames on a socket: u32 length of the rest, u32 length of the JSON, the JSON, a body."""

    def __init__(self, sock):
        self.sock, self.data = sock, b""
        sock.settimeout(PATIENCE)

    def send(self, head, body=b""):
        text = json.dumps(head).encode()
        self.sock.sendall(struct.pack("<II", 4 + len(text) + len(body), len(text)) + text + body)

    def receive(self):
        while len(self.data) < 8 or len(self.data) < 4 + struct.unpack_from("<I", self.data)[0]:
            chunk = self.sock.recv(1 << 16)
            if not chunk:
                raise EOFError("it closed its socket")
            self.data += chunk
        size, head = struct.unpack_from("<II", self.data)
        message, body = json.loads(self.data[8:8 + head]), self.data[8 + head:4 + size]
        self.data = self.data[4 + size:]
        return message, body


def per_call(counted, call):
    for _ in range(WARM):
        call()

    def work():
        for _ in range(CALLS):
            call()

    # What happens besides, once a second or so, hits one of them and not another.
    return min(counted.count(work) for _ in range(WINDOWS)) // CALLS


SERVER = [BELLJAR, "mcp", "--toolsets", "contexts"]
# There it sleeps while it waits for an answer. With more it looks again and again, as often as it can until there is one.
ONE_PROCESSOR = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}


def server_environment():
    env = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_") or name == "BELLJAR_HOME"}
    return {**env, "BELLJAR_CONFIG": os.devnull, "BELLJAR_POOL_SIZE": "0", "BELLJAR_CONTEXTS_MAX": str(CROWD + 10)}


class Client:
    """Of a server on pipes."""

    def __init__(self, process, log=lambda: ""):
        self.process, self.log, self.number = process, log, 0
        self.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "guard", "version": "1"}})
        self.process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    def request(self, method, params):
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            line += self.process.stdout.readline()
            if not line:
                sys.exit(f"the server ended:\n{self.log()}")
        return json.loads(line)["result"]

    def call(self, tool, **arguments):
        result = self.request("tools/call", {"name": tool, "arguments": arguments})
        return result.get("structuredContent") or sys.exit(f"{tool}: {result}")


def server():
    """From a line on standard input to the line of the answer, sandbox and all; only the server is counted."""
    env = {**server_environment(), "LD_PRELOAD": str(callgrind.shim()), "GUARD_PROGRAM": BELLJAR}
    with Counted(SERVER, env, ONE_PROCESSOR, **PIPES) as counted:
        client = Client(counted.process, counted.log)
        call, request = client.call, client.request
        context = call("create_context", name="guard")["context_id"]

        def run(code, expected, context=context):
            said = call("run_code", context_id=context, code=code)
            if expected not in str(said):
                sys.exit(f"{code!r} is not {expected}: {said}")

        def create_and_stop():
            call("stop_context", context_id=call("create_context", name="for a moment")["context_id"])

        def alone_or_beside(where):
            yield f"server, run_code by name{where}", per_call(counted, lambda: run("1+1", "'2'", "guard"))
            yield f"server, create_context and stop_context{where}", per_call(counted, create_and_stop)

        yield "server, run_code", per_call(counted, lambda: run("1+1", "'2'"))
        yield "server, run_code of a cell that fails", per_call(counted, lambda: run("1/0", "ZeroDivisionError"))
        run(TABLE, "3")
        yield "server, run_code of a DataFrame", per_call(counted, lambda: run("df", "<td>"))
        yield "server, list_contexts", per_call(counted, lambda: call("list_contexts"))
        yield "server, tools/list", per_call(counted, lambda: request("tools/list", {}))
        yield from alone_or_beside("")
        # Whoever looks at all contexts to find one, or to let one go, shows here.
        for number in range(CROWD):
            call("create_context", name=f"one of many {number}")
        yield from alone_or_beside(BESIDE)


def served():
    """The same over HTTP, on one connection."""
    home = driver.new_home()
    log = home / "log"
    env = {**server_environment(), "BELLJAR_HOME": str(home), "LD_PRELOAD": str(callgrind.shim()), "GUARD_PROGRAM": BELLJAR}
    command = [BELLJAR, "serve", "--port", "0", "--http-rate", "0"]
    try:
        with Counted(command, env, ONE_PROCESSOR, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log.open("wb")) as counted:
            connection = http.client.HTTPConnection(driver.address(log, PATIENCE), timeout=PATIENCE)

            def call(tool, **arguments):
                params = {"name": tool, "arguments": arguments, "_meta": driver.META}
                body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
                connection.request("POST", "/mcp", body, driver.headers("tools/call", tool))
                said = connection.getresponse().read().decode().strip()
                result = json.loads(said.rpartition("data:")[2])["result"]
                return result.get("structuredContent") or sys.exit(f"{tool}: {result}")

            context = call("create_context", name="guard")["context_id"]

            def run():
                if call("run_code", context_id=context, code="1+1")["result"] != "2":
                    sys.exit("1+1 is not 2")

            yield "server over HTTP, run_code", per_call(counted, run)
            counted.process.terminate()
    finally:
        shutil.rmtree(home, ignore_errors=True)


class Kernel:
    """A real Python kernel, and its wires. Under callgrind if that is wanted."""

    def __init__(self, start):
        self.sock, theirs = socket.socketpair()
        pipes = os.pipe(), os.pipe()
        self.out, self.err = pipes[0][0], pipes[1][0]
        command = [PYTHON, "-c", START_KERNEL, str(KERNELS), str(theirs.fileno())]
        self.started = start(command, env=KERNEL_ENVIRONMENT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=pipes[0][1], stderr=pipes[1][1],
                             cwd="/")
        theirs.close()
        os.close(pipes[0][1])
        os.close(pipes[1][1])


def kernel():
    """A cell, as the interpreter sees it."""
    made = Kernel(Counted)
    with made.started as counted, contextlib.closing(made.sock):
        frames, number = Frames(made.sock), 0
        try:
            frames.receive()
        except EOFError:
            sys.exit(f"the kernel did not start: {os.read(made.err, 4000).decode(errors='replace')}\n{counted.log()}")

        def cell(code):
            nonlocal number
            number += 1
            frames.send({"t": "run", "id": number}, code)
            while "done" not in frames.receive()[0]:
                pass

        python = ".".join(platform_of(PYTHON))
        yield f"kernel, Python {python}, a value", per_call(counted, lambda: cell(b"1+1"))
        yield f"kernel, Python {python}, a statement", per_call(counted, lambda: cell(b"x = 1"))
        yield f"kernel, Python {python}, a cell that fails", per_call(counted, lambda: cell(b"1/0"))
        cell(TABLE.encode())
        yield f"kernel, Python {python}, a DataFrame", per_call(counted, lambda: cell(b"df"))
        made.sock.shutdown(socket.SHUT_RDWR)


def platform_of(python):
    said = subprocess.run([python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=True)
    return said.stdout.split()


def guest():
    """From a frame of the host to the reply, with a real interpreter; only the guest is counted."""
    if os.geteuid() != 0:
        print("the guest is not counted: only root can give it a process namespace of its own here")
        return
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", ALONE, str(theirs.fileno())]
    program = callgrind.WORK / "guest"
    callgrind.WORK.mkdir(parents=True, exist_ok=True)
    shutil.copy(GUEST, program)
    program.chmod(0o755)
    made = Kernel(subprocess.Popen)
    host, guests = socket.socketpair()

    def packet(message, *fds):
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        control.sendmsg([json.dumps(message).encode()], ancillary)

    environment = {"PATH": os.environ["PATH"]}
    with Counted([program], environment, launcher, alone=True, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL) as counted:
        theirs.close()
        # Without a limit of processes there is nothing to tidy up either.
        config = {"digest": "", "first": "python", "javascript": [], "memory_bytes": 1 << 30, "processes": 0}
        packet({"t": "init", "config": config})
        packet({"t": "kernel", "id": 0}, made.sock.fileno(), made.out, made.err)
        packet({"t": "connection"}, guests.fileno())
        for end in (made.sock, guests):
            end.close()
        for end in (made.out, made.err):
            os.close(end)
        frames, number = Frames(host), 0
        frames.receive()

        def run():
            nonlocal number
            number += 1
            limits = {"timeout_ms": 600_000, "output_cap": 100_000, "streaming": "off"}
            frames.send({"id": number, "call": {"run": {"language": "python", "limits": limits}}}, b"1+1")
            while True:
                message, _ = frames.receive()
                if "reply" in message:
                    return message["reply"]["reply"].get("ran", {}).get("ok") or sys.exit(f"the guest says {message}")

        yield "guest, run", per_call(counted, run)
        host.close()
        control.close()
    made.started.wait(PATIENCE)


def pages():
    """What a fresh interpreter writes to, and has to have copies of. The fewer, the sooner it is there and gone."""
    if os.geteuid() != 0:
        print("pages are not counted: only root may look at those of a sandbox")
        return
    with subprocess.Popen(SERVER, env=server_environment(), stderr=subprocess.DEVNULL, **PIPES) as process:
        try:
            client, counts = Client(process), []
            client.call("create_context", name="the first")
            known = pythons(process.pid)
            for number in range(FORKS):
                client.call("create_context", name=f"fork {number}")
                (fresh,) = pythons(process.pid).keys() - known.keys()
                known[fresh] = number
                counts.append(own_pages(fresh))
            process.stdin.close()
            process.wait(PATIENCE)
        finally:
            process.kill()
    yield f"pages of a fresh interpreter, Python {'.'.join(platform_of(PYTHON))}", sorted(counts)[FORKS // 2]


def pythons(server):
    """When each interpreter of the server was started."""
    found = {}
    for pid in proc.family(server):
        with contextlib.suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/comm").read_text().startswith("python"):
                found[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return found


def own_pages(pid):
    """Those that it wrote to: no other process has them, and they are not a file's."""
    count = 0
    with open(f"/proc/{pid}/pagemap", "rb", 0) as table:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, rights = line.split()[:2]
            if rights == "rw-p":
                start, end = (int(address, 16) for address in where.split("-"))
                table.seek(start // PAGE * 8)
                count += sum(1 for page in array.array("Q", table.read((end - start) // PAGE * 8)) if page >> 56 & 0b100001 == 1)
    return count


def judge(what, count, before, taken):
    """(what to say of it, whether it may be)"""
    if what.endswith(BESIDE):
        ratio = count / taken[what.removesuffix(BESIDE)]
        return f"{ratio:.3f} × of that without them{', TOO MANY' if ratio > CROWDED else ''}", ratio <= CROWDED
    if before is None:
        # On a machine with another Python its figures may be missing, and can be added.
        return "not recorded", not os.environ.get("CI")
    ratio = count / before
    verdict = "TOO MANY" if ratio > MARGIN else "fewer: record it" if ratio < 1 / MARGIN else "ok"
    return f"recorded {before:,} ({ratio:.2f} ×), {verdict}", ratio <= MARGIN


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write what it takes now into figures.json")
    parser.add_argument("--keep", action="store_true", help="keep what callgrind wrote, for callgrind_annotate")
    options = parser.parse_args()
    if not callgrind.available():
        print("THE GUARD WAS SKIPPED: there is no valgrind (apt-get install valgrind)", file=sys.stderr)
        sys.exit(1 if os.environ.get("CI") else 77)
    if not PYTHON or not SITE:
        sys.exit("call it as `scripts/with-template.sh bench/guard/guard.py`")
    for path in (BELLJAR, GUEST):
        if not os.path.exists(path):
            sys.exit(f"there is nothing at {path}: run `make build` first")
    callgrind.keep = options.keep
    recorded = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    taken, failed = {}, []
    for part in (server, served, guest, kernel, pages):
        unit = "pages" if part is pages else "instructions per call"
        for what, count in part():
            taken[what] = count
            verdict, passed = judge(what, count, recorded.get(what), taken)
            print(f"{what:<60} {count:>10,} {unit}: {verdict}", flush=True)
            if not passed:
                failed.append(what)
    if os.environ.get("CI"):
        failed += [what for what in recorded.keys() - taken.keys() if "Python" not in what or f"Python {'.'.join(platform_of(PYTHON))}" in what]
    if options.record:
        FIGURES.write_text(json.dumps({**recorded, **taken}, indent=1, sort_keys=True) + "\n")
    elif failed:
        sys.exit(f"more than {MARGIN - 1:.0%} above what is recorded, or {CROWDED - 1:.0%} above the same without a crowd, or not recorded, or not counted: {'; '.join(failed)}. Find out why with --keep and callgrind_annotate; "
                 "if it is worth it, `make guard GUARD=--record` and say so in the commit")


if __name__ == "__main__":
    main()
