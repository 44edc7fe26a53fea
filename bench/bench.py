#!/usr/bin/env python3
"""The budgets of the design, measured on this machine: `make bench`, or `make bench BENCH=--quick`.

Speaks JSON-RPC over pipes itself, so that little but the server is measured. Each figure is a median unless it
says otherwise. Run it on a quiet machine.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BELLJAR = os.path.abspath(os.environ.get("BELLJAR") or ROOT / "target/release/belljar")
ID = re.compile(rb'"id":(\d+)')
MEGABYTE = 1_000_000


class Server:
    """A server on pipes. Requests may be sent ahead; answers come in any order."""

    def __init__(self, *, start=True, **settings):
        env = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}
        kept = ("BELLJAR_HOME", "BELLJAR_PYTHON", "BELLJAR_NODE", "BELLJAR_CONFIG")
        env.update({name: os.environ[name] for name in kept if name in os.environ})
        env.update({f"BELLJAR_{name}": str(value) for name, value in settings.items()})
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [BELLJAR, "mcp", "--toolsets", "contexts"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, bufsize=0, env=env)
        self.pid = self.process.pid
        self.input, self.output = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.number, self.buffer, self.early = 0, b"", {}
        if start:
            self.initialize()

    def initialize(self):
        client = {"name": "belljar-bench", "version": "1"}
        self.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client})
        self.write({"method": "notifications/initialized"})

    def write(self, message):
        data = memoryview(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        while data:
            data = data[os.write(self.input, data):]

    def send(self, method, params):
        self.number += 1
        self.write({"id": self.number, "method": method, "params": params})
        return self.number

    def send_call(self, tool, **arguments):
        return self.send("tools/call", {"name": tool, "arguments": arguments})

    def line(self):
        while b"\n" not in self.buffer:
            chunk = os.read(self.output, 1 << 20)
            if not chunk:
                sys.exit(f"the server ended: run `{BELLJAR} doctor`")
            self.buffer += chunk
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line

    def answer(self, number):
        while number not in self.early:
            message = json.loads(self.line())
            if "method" not in message:
                self.early[message["id"]] = message
        message = self.early.pop(number)
        if "error" in message:
            sys.exit(f"the server refused: {message['error']}")
        result = message["result"]
        if result.get("isError"):
            sys.exit(f"a tool refused: {result['content'][0]['text']}")
        return result.get("structuredContent", result)

    def request(self, method, params):
        return self.answer(self.send(method, params))

    def call(self, tool, **arguments):
        return self.answer(self.send_call(tool, **arguments))

    def timed(self, tool, **arguments):
        """(seconds, result) of one call; reading the answer's JSON is not counted."""
        self.number += 1
        params = {"name": tool, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": self.number, "method": "tools/call", "params": params}
        data = json.dumps(message).encode() + b"\n"
        began = time.perf_counter()
        os.write(self.input, data)
        line = self.line()
        took = time.perf_counter() - began
        message = json.loads(line)
        self.early[message["id"]] = message
        return took, self.answer(self.number)

    def create(self, language="python"):
        return self.call("create_context", name="bench", language=language)["context_id"]

    def warm_up(self, language="python", pause=1.0):
        """Waits until the interpreters are loaded and the pool is full."""
        context = self.create(language)
        self.call("run_code", context_id=context, code="1")
        self.call("stop_context", context_id=context)
        time.sleep(pause)

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# Memory


def family(pid):
    """The process and all its descendants."""
    children = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                parent = int(Path(entry.path, "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, generation = [], [pid]
    while generation:
        found += generation
        generation = [child for parent in generation for child in children.get(parent, [])]
    return found


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
    """What the kernel holds for the sandboxes, as far as cgroups tell."""
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


def memory(server):
    pids = family(server.pid)
    return proportional(pids) + kernel_memory(pids)


def peak(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


# The table


class Table:
    def __init__(self):
        self.rows, self.over = [], 0
        self.print("what", "budget", "measured", "")
        self.print("---", "---", "---", "---")

    @staticmethod
    def print(what, budget, measured, verdict):
        print(f"| {what:<58} | {budget:>12} | {measured:>24} | {verdict:<9} |", flush=True)

    def add(self, what, value, unit, budget=None, at_least=False, note=""):
        """One line. Without a budget it is there for the reader only."""
        show = {"ms": lambda v: f"{v * 1e3:.3g} ms", "s": lambda v: f"{v:.2f} s", "MB": lambda v: f"{v / MEGABYTE:,.{0 if v >= 100 * MEGABYTE else 2}f} MB",
                "/s": lambda v: f"{v:,.0f} /s"}[unit]
        verdict = limit = ""
        if budget is not None:
            ok = value >= budget if at_least else value <= budget
            self.over += not ok
            ratio = value / budget if at_least else budget / value
            verdict = f"ok {ratio:.1f}x" if ok else f"OVER {1 / ratio:.1f}x"
            limit = f"{'>=' if at_least else '<='} {show(budget)}"
        self.print(what, limit, f"{show(value)}{' ' + note if note else ''}", verdict)
        self.rows.append({"what": what, "value": value, "unit": unit, "budget": budget, "note": note})


def tail(values):
    return "" if len(values) < 20 else f"(p99 {sorted(values)[int(len(values) * 0.99)] * 1e3:.2f})"


def create(server, language, count, pause):
    """How long create_context takes, and the first result after it."""
    made, first = [], []
    code = "import numpy, pandas, matplotlib.pyplot" if language == "python" else "1 + 1"
    for _ in range(count):
        seconds, context = server.timed("create_context", name="bench", language=language)
        made.append(seconds)
        seconds, _ = server.timed("run_code", context_id=context["context_id"], code=code)
        first.append(seconds)
        server.call("stop_context", context_id=context["context_id"])
        time.sleep(pause)
    return made, first


def creation(table, n):
    with Server() as server:
        server.warm_up()
        made, first = create(server, "python", n(100), 0.1)
        table.add("create_context, pool warm", statistics.median(made), "ms", 1e-3, note=tail(made))
        table.add("  its first run_code", statistics.median(first), "ms")
    with Server(POOL_SIZE=0) as server:
        server.warm_up(pause=0.3)
        made, first = create(server, "python", n(50), 0.03)
        table.add("create_context, pool empty", statistics.median(made), "ms", 8e-3, note=tail(made))
        table.add("  its first run_code: numpy, pandas, matplotlib", statistics.median(first), "ms")


def running(table, n):
    with Server() as server:
        server.warm_up()
        context = server.create()
        took = [server.timed("run_code", context_id=context, code="1+1")[0] for _ in range(n(2000) + 50)][50:]
        table.add('run_code("1+1")', statistics.median(took), "ms", 0.6e-3, note=tail(took))


def starting(table, n):
    took = []
    for _ in range(n(10)):
        with Server() as server:
            server.request("tools/list", {})
            took.append(time.perf_counter() - server.began)
    table.add("start to tools/list", statistics.median(took), "ms", 50e-3)

    def first_result():
        with Server() as server:
            context = server.create()
            assert server.call("run_code", context_id=context, code="1+1")["result"] == "2"
            return time.perf_counter() - server.began

    table.add("start to the first Python result, files in the page cache",
              statistics.median(first_result() for _ in range(n(5))), "s", 1)
    cold = []
    for _ in range(n(3)):
        os.sync()
        try:
            Path("/proc/sys/vm/drop_caches").write_text("3")
        except OSError:
            return
        cold.append(first_result())
    table.add("  the same, page cache dropped: the disk's speed", statistics.median(cold), "s")


def idle_memory(table, n):
    few, many = n(50), n(250)
    with Server(CONTEXTS_MAX=many + 10, POOL_SIZE=0) as server:
        server.warm_up()
        contexts = [server.create() for _ in range(few)]
        time.sleep(0.5)
        before = memory(server)
        contexts += [server.create() for _ in range(many - few)]
        time.sleep(0.5)
        idle = (memory(server) - before) / (many - few)
        table.add("memory of an idle Python context, guest included", idle, "MB", 5 * MEGABYTE, note=f"(of {many - few})")
        for context in contexts:
            server.call("run_code", context_id=context, code="1+1")
        used = (memory(server) - before - idle * (many - few)) / many + idle
        table.add("  after it answered once", used, "MB")


def crowd(table, n):
    count, ahead = n(1000), 16
    with Server(CONTEXTS_MAX=count + 100) as server:
        server.warm_up()
        began = time.perf_counter()
        contexts = pipelined(server, ahead, [("create_context", {"name": f"c{i}"}) for i in range(count)])
        created = time.perf_counter() - began
        calls = [("run_code", {"context_id": context["context_id"], "code": "1+1"}) for context in contexts]
        assert all(ran["result"] == "2" for ran in pipelined(server, ahead, calls))
        took = time.perf_counter() - began
        whole = count == 1000
        table.add(f"{count:,} contexts, each then answering", took, "s", 10 if whole else None, note=f"(made in {created:.2f})")
        table.add("  all memory: theirs, the zygote's, the server's", memory(server), "MB", 6000 * MEGABYTE if whole else None)
        began = time.perf_counter()
    table.add("  ending them all", time.perf_counter() - began, "s")


def pipelined(server, ahead, calls):
    """Keeps `ahead` calls under way; results in order."""
    numbers, results = [], []
    for tool, arguments in calls:
        numbers.append(server.send_call(tool, **arguments))
        if len(numbers) - len(results) >= ahead:
            results.append(server.answer(numbers[len(results)]))
    return results + [server.answer(number) for number in numbers[len(results):]]


def javascript(table, n):
    with Server(POOL_LANGUAGES="all") as server:
        server.warm_up("javascript")
        made, first = create(server, "javascript", n(50), 0.2)
        table.add("JavaScript create_context, pool warm", statistics.median(made), "ms", 1e-3, note=tail(made))
        table.add("  its first run_code", statistics.median(first), "ms")
    with Server(POOL_SIZE=0) as server:
        server.warm_up("javascript", 0.3)
        made, first = create(server, "javascript", n(30), 0.05)
        table.add("JavaScript create_context, pool empty", statistics.median(made), "ms", 80e-3, note=tail(made))
        context = server.create("javascript")
        took = [server.timed("run_code", context_id=context, code="1+1")[0] for _ in range(n(1000) + 50)][50:]
        table.add('JavaScript run_code("1+1")', statistics.median(took), "ms")


def output(table, n):
    with Server() as server:
        server.warm_up()
        context = server.create()
        server.call("run_code", context_id=context, code="line = 'x' * 99 + '\\n'\nimport sys\nsys.stdout.write(line * 1000)")
        before = peak(server.pid)
        took = []
        for _ in range(n(5)):
            seconds, ran = server.timed("run_code", context_id=context, code="for _ in range(100): sys.stdout.write(line * 1000);")
            assert ran["stdout_truncated"]["total_bytes"] == 10_000_000
            took.append(seconds)
        table.add("10 MB of output to a capped result", statistics.median(took), "s", 0.2)
        table.add("  growth of the server's memory", max(1, peak(server.pid) - before), "MB", 8 * MEGABYTE)


def together(table, n):
    with Server() as server:
        server.warm_up()
        contexts = [server.create() for _ in range(8)]
        head = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"run_code","arguments":{"code":"1+1","context_id":"%s"}}}\n'
        for context in contexts:
            server.call("run_code", context_id=context, code="1+1")
        total, done, waiting = n(20_000), 0, {}
        began = time.perf_counter()
        for context in contexts:
            server.number += 1
            waiting[server.number] = context.encode()
            os.write(server.input, head % (server.number, context.encode()))
        while done < total:
            chunk = os.read(server.output, 1 << 20)
            server.buffer += chunk
            *lines, server.buffer = server.buffer.split(b"\n")
            more = []
            for line in lines:
                context = waiting.pop(int(ID.search(line)[1]))
                server.number += 1
                waiting[server.number] = context
                more.append(head % (server.number, context))
                done += 1
            if more:
                os.write(server.input, b"".join(more))
        rate = done / (time.perf_counter() - began)
        table.add("8 contexts at once, one call each under way", rate, "/s", 3000, at_least=True)


LINES = [creation, running, starting, idle_memory, crowd, javascript, output, together]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions: to see that it works")
    parser.add_argument("--strict", action="store_true", help="fail when a line is over its budget")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("only", nargs="*", choices=[[], *(line.__name__ for line in LINES)], help="some of the lines")
    options = parser.parse_args()
    if not os.access(BELLJAR, os.X_OK):
        sys.exit(f"there is no server at {BELLJAR}: run `make build` first")

    settings = tempfile.NamedTemporaryFile(prefix="belljar-bench-", suffix=".toml")
    os.environ["BELLJAR_CONFIG"] = settings.name
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    version = subprocess.run([BELLJAR, "--version"], capture_output=True, text=True).stdout.strip()
    print(f"{version}; {os.cpu_count()} x {model[1] if model else platform.machine()}, Linux {platform.release()}, "
          f"load {os.getloadavg()[0]:.1f}\n")
    table = Table()
    for line in LINES:
        if not options.only or line.__name__ in options.only:
            line(table, lambda count: max(3, count // 10) if options.quick else count)
    print(f"\n{sum(row['budget'] is not None for row in table.rows) - table.over} within budget, {table.over} over")
    if options.json:
        Path(options.json).write_text(json.dumps(table.rows, indent=1) + "\n")
    sys.exit(1 if options.strict and table.over else 0)


if __name__ == "__main__":
    main()
