#!/usr/bin/env python3
"""One sandbox at full attack, and what its neighbour feels of it: `make neighbour`.

    bench/neighbour.py [--seconds 60] [--fail-above 2] [--network]

Two contexts of one `belljar mcp`. The first answers `run_code("1+1")`, one call after the other; the other one is quiet at
first, then forks, fills memory and disks, prints, opens sockets and sends signals, all at once and for as long as told; with
--network it also goes out through its proxy as much as that lets it, to a server that has to be on this machine as well.
Prints the median and the 99th percentile before and during the attack, and their ratio. Fails if that is too large, or if
one of the attacks was not there all the time: a neighbour that sleeps disturbs nobody. Needs root, to see them.

BELLJAR names the binary (default: target/release/belljar), BELLJAR_HOME the home with the templates.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BELLJAR = os.path.abspath(os.environ.get("BELLJAR") or ROOT / "target/release/belljar")
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "neighbour", "version": "1"},
}
LOOK_EVERY = 10  # seconds, at the attacks: each of them gets its turn in that time, also on a busy machine
# Each of these runs for ever, and is started again when a limit ends it.
ATTACKS = {
    "forks": "import os\nwhile True:\n  try:\n    if os.fork() == 0: os._exit(0)\n    os.waitpid(-1, os.WNOHANG)\n  except OSError: pass",
    "memory": "kept = []\nwhile True:\n  try: kept.append(bytearray(b'x') * (16 << 20))\n  except MemoryError: kept.clear()",
    "disk": "import os\nwhile True:\n  try:\n    with open('/tmp/big', 'wb', 0) as f:\n      while f.write(bytes(1 << 20)): pass\n  except OSError: os.unlink('/tmp/big')",
    "output": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "sockets": "import socket\nkept = []\nwhile True:\n  try: kept.append(socket.socketpair()); kept[-1][0].send(b'x' * 1000)\n  except OSError: kept.clear()",
    "signals": "import os, signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\nwhile True: os.kill(os.getpid(), signal.SIGUSR1)",
    "processor": "while True: pass",
}
NETWORK = {
    # A hundred or so at a time, as fast as the proxy takes them.
    "connections": """import os, socket
place = os.environ['OUTSIDE']
for _ in range(6):
  if os.fork() == 0: break
while True:
  kept = []
  try:
    for _ in range(16):
      kept.append(socket.create_connection(('127.0.0.1', 3128)))
      kept[-1].sendall(f'GET http://{place}/ HTTP/1.1\\r\\nHost: {place}\\r\\n\\r\\n'.encode())
    for each in kept:
      while each.recv(65536): pass
  except OSError: pass""",
    "transfer": """import os, socket
place = os.environ['OUTSIDE']
while True:
  try:
    with socket.create_connection(('127.0.0.1', 3128)) as stream:
      stream.sendall(f'GET http://{place}/endless HTTP/1.1\\r\\nHost: {place}\\r\\n\\r\\n'.encode())
      while stream.recv(1 << 20): pass
  except OSError: pass""",
}


class Outside:
    """Stands for some server elsewhere: answers at once, and at /endless for ever."""

    def __init__(self):
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.place = "127.0.0.1:%d" % listener.getsockname()[1]
        self.process = multiprocessing.get_context("fork").Process(target=self.serve, args=(listener,), daemon=True)
        self.process.start()
        listener.close()

    def serve(self, listener):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # it would be another machine
        while True:
            stream, _ = listener.accept()
            threading.Thread(target=self.answer, args=(stream,), daemon=True).start()

    @staticmethod
    def answer(stream):
        with stream:
            try:
                request = stream.recv(65536)
                if not request.startswith(b"GET /endless "):
                    return stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
                stream.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    stream.sendall(bytes(1 << 20))
            except OSError:
                pass

    def close(self):
        self.process.terminate()
        self.process.join()


class Server:
    def __init__(self, place):
        settings = {**os.environ, "BELLJAR_TOOLSETS": "contexts,sessions", "BELLJAR_RUN_MAX_TIMEOUT": "2h",
                    "BELLJAR_NETWORK_MAX": "allowlist", "BELLJAR_NETWORK_DEFAULT": "allowlist", "BELLJAR_NETWORK_PRIVATE": place}
        self.process = subprocess.Popen([BELLJAR, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                                        stderr=subprocess.DEVNULL, env=settings)
        self.ids = itertools.count(1)

    def call(self, tool, **arguments):
        number = next(self.ids)
        params = {"name": tool, "arguments": arguments, "_meta": META}
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        while line := self.process.stdout.readline():
            answer = json.loads(line)
            if answer.get("id") == number:
                if "error" in answer:
                    raise SystemExit(answer["error"]["message"])
                return answer["result"]["structuredContent"]
        raise SystemExit("the server ended")

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def measure(server, context, seconds):
    """Milliseconds of each call."""
    taken, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        ran = server.call("run_code", context_id=context, code="1+1")
        taken.append((time.perf_counter() - began) * 1000)
        assert ran["success"], ran
    return sorted(taken)


def sign(name):
    """By which an attack's processes are known, in their command lines."""
    return f"# {name} of {os.getpid()}"


def spent():
    """For each attack, how many processes it has and the time that they and those before them used, in ticks."""
    found = {name: (0, 0) for name in ATTACKS}
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path("/proc", number, "cmdline").read_text(errors="replace")
            fields = Path("/proc", number, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        for name, (count, ticks) in found.items():
            if sign(name) in line:
                found[name] = count + 1, ticks + sum(map(int, fields[11:15]))
    return found


def attacked(server, context, seconds, launch):
    """Milliseconds of each call, and what was missing of the attack. One that a limit ended altogether, with the shell that
    starts it again, is begun anew."""
    taken, idle, last, looks = [], [], spent(), max(1, round(seconds / LOOK_EVERY))
    for look in range(1, looks + 1):
        taken += measure(server, context, seconds / looks)
        now = spent()
        for name, (count, ticks) in now.items():
            if not count:
                if not last[name][0]:
                    idle.append(f"{name}: no process at look {look} of {looks}")
                launch(name)
            elif ticks <= last[name][1]:
                idle.append(f"{name}: {count} processes that did nothing before look {look} of {looks}")
        last = now
    print("processes and seconds of the attack: " + ", ".join(
        f"{name} {count}, {ticks / os.sysconf('SC_CLK_TCK'):.1f}" for name, (count, ticks) in last.items()))
    return sorted(taken), idle


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="of attack; the quiet before is a third of that")
    parser.add_argument("--fail-above", type=float, default=2, metavar="RATIO", help="exit with 1 if p99 grows by more (2)")
    parser.add_argument("--network", action="store_true", help="attack through the proxy too")
    arguments = parser.parse_args()
    ATTACKS.update(NETWORK if arguments.network else {})
    outside = Outside()
    server = Server(outside.place)
    try:
        # Whoever asks is somewhere else and busy with something else: not part of what is measured.
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        print("without root the time of this client counts too")
    try:
        context = server.call("create_context", name="neighbour")["context_id"]
        asked = server.call("execute_command", command=f"curl -sS --noproxy '' http://{outside.place}/")
        assert asked["stdout"] == "hello", asked
        session = asked["session_id"]
        measure(server, context, 1)
        before = measure(server, context, arguments.seconds / 3)

        def launch(name):
            forever = f"while true; do python3 -c \"$CODE\"; done  {sign(name)}"
            marked = f"{sign(name)}\n{ATTACKS[name]}"
            server.call("execute_command", session_id=session, command=forever, background=True,
                        env={"CODE": marked, "OUTSIDE": outside.place})

        for name in ATTACKS:
            launch(name)
        # Until each has begun.
        measure(server, context, 1)
        during, idle = attacked(server, context, arguments.seconds, launch)
    finally:
        server.close()
        outside.close()
    print(f"load of the machine: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    print(f"{'':10} {'calls':>8} {'p50 ms':>9} {'p99 ms':>9} {'worst ms':>9}")
    for name, taken in (("before", before), ("during", during)):
        print(f"{name:10} {len(taken):8} {statistics.median(taken):9.3f} {taken[len(taken) * 99 // 100]:9.3f} {taken[-1]:9.3f}")
    ratio = during[len(during) * 99 // 100] / before[len(before) * 99 // 100]
    print(f"p99 grew by a factor of {ratio:.2f}")
    for line in idle:
        print(f"the attack was not alive, {line}")
    if ratio > arguments.fail_above:
        print(f"that is more than {arguments.fail_above:g}")
    return 1 if idle or ratio > arguments.fail_above else 0


if __name__ == "__main__":
    sys.exit(main())
