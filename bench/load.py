#!/usr/bin/env python3
"""Many callers at once on one `belljar serve`: `make load`, or `make load LOAD="--callers 20 --seconds 5"`.

Every caller has a token, a connection and a context of its own, and checks that each answer is the one to its own
request. Then the server is killed in the middle of the load and started again, and every context must still be there,
with its variables. Fails when an answer, or a context, is lost, wrong or somebody else's.
"""

import argparse
import asyncio
import collections
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from load_callers import MAX_FAILURES, Caller, Load, Operator, Unanswered

ROOT = Path(__file__).resolve().parents[1]
BELLJAR = os.path.abspath(os.environ.get("BELLJAR") or ROOT / "target/release/belljar")
TICKS = os.sysconf("SC_CLK_TCK")
# Safety limits: nothing is expected to come near them.
START_LIMIT, RESUME_LIMIT, STOP_LIMIT = 60, 100, 90


# Processes


def stat(pid):
    """Fields of /proc/PID/stat from the third on, or None when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None


def born(pid):
    fields = stat(pid)
    return fields[19] if fields and fields[0] not in "ZX" else None


def family(pids):
    """The processes and all their descendants, each with the time of its birth."""
    children = collections.defaultdict(list)
    for entry in os.scandir("/proc"):
        fields = stat(entry.name) if entry.name.isdigit() else None
        if fields:
            children[int(fields[1])].append(int(entry.name))
    found, generation = [], list(pids)
    while generation:
        found += generation
        generation = [child for parent in generation for child in children[parent]]
    return {pid: born(pid) for pid in found if born(pid)}


def cpu(pid, with_children=False):
    fields = stat(pid)
    return sum(int(ticks) for ticks in fields[11:15 if with_children else 13]) / TICKS if fields else 0.0


def memory_peak(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


class Server:
    """`belljar serve` with a home of its own, that has only the templates of the real one."""

    def __init__(self):
        real = os.environ.get("BELLJAR_HOME")
        if not real:
            data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
            real = os.path.join(data, "belljar")
        templates = Path(real, "templates").resolve()
        if not templates.is_dir():
            sys.exit(f"there are no templates in {templates}: run `make setup` first")
        self.home = Path(tempfile.mkdtemp(prefix="belljar-load-"))
        (self.home / "templates").symlink_to(templates)
        (self.home / "belljar.toml").touch()
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("BELLJAR", "MCP_"))}
        kept = ("BELLJAR_PYTHON", "BELLJAR_NODE")
        self.env.update({name: os.environ[name] for name in kept if name in os.environ})
        self.env.update(BELLJAR_HOME=str(self.home), BELLJAR_CONFIG=str(self.home / "belljar.toml"))
        self.process, self.port, self.starts = None, 0, 0
        self.jailers, self.seen = set(), {}

    def token(self, name, *flags):
        made = subprocess.run([BELLJAR, "token", "add", name, *flags], env=self.env, capture_output=True, text=True)
        if made.returncode:
            sys.exit(f"no token could be made: {made.stderr.strip()}")
        return made.stdout.strip()

    def start(self):
        """Does not wait until it listens: callers come when they come."""
        self.starts += 1
        self.log = self.home / f"serve-{self.starts}.log"
        command = [BELLJAR, "serve", "--port", str(self.port), "--http-rate", "0"]
        self.process = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=self.log.open("wb"))
        self.pid = self.process.pid

    def wait_until_ready(self):
        for _ in range(START_LIMIT * 20):
            text = self.log.read_text(errors="replace")
            listening = re.search(r"listening on http://127\.0\.0\.1:(\d+)/mcp", text)
            if listening and "ready for requests" in text:
                self.port = int(listening[1])
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"the server did not start:\n{self.log.read_text(errors='replace')[-2000:]}")

    def look(self):
        """Remembers its processes, to know them when they have lost their parent."""
        now = family([self.pid, *self.jailers])
        self.jailers.update(pid for pid in now if (fields := stat(pid)) and int(fields[1]) == self.pid)
        self.seen.update(now)
        return now

    def sandbox_cpu(self):
        return sum(cpu(pid, with_children=True) for pid in self.look() if pid != self.pid)

    def stop(self):
        """(exit code, seconds) after SIGTERM."""
        self.look()
        began = time.perf_counter()
        self.process.terminate()
        try:
            code = self.process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        return code, time.perf_counter() - began

    def left(self):
        """What is still there after the end: processes, and entries of the run directory."""
        run = self.home / "run"
        for _ in range(100):
            alive = [pid for pid, birth in self.seen.items() if born(pid) == birth]
            entries = os.listdir(run) if run.exists() else []
            if not alive and not entries:
                break
            time.sleep(0.1)
        return [f"process {pid}" for pid in alive] + [f"run/{entry}" for entry in entries]

    def warnings(self):
        lines = [line for log in sorted(self.home.glob("serve-*.log")) for line in log.open(errors="replace")]
        return [line.strip() for line in lines if re.match(r"\S+\s+(WARN|ERROR) ", line)]


def usage(server):
    """Processor seconds so far: the server, its sandboxes, this test, and all of the machine."""
    machine = [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return {"server": cpu(server.pid), "sandboxes": server.sandbox_cpu(), "this test": time.process_time(),
            "the whole machine": (sum(machine) - machine[3] - machine[4]) / TICKS}


# The report


def table(figures, server_side):
    def at(values, part):
        return values[min(len(values) - 1, int(len(values) * part))]

    rows = []
    for kind, took in sorted(figures.took.items()):
        took.sort()
        tool = kind.split(":")[0].split(",")[0]
        name = 'belljar_call_seconds_{}{{tool="%s"}}' % tool
        calls, seconds = (server_side.get(name.format(part), 0) for part in ("count", "sum"))
        rows.append({"operation": kind, "count": len(took), "p50": at(took, 0.5), "p90": at(took, 0.9),
                     "p99": at(took, 0.99), "max": took[-1], "server_mean": seconds / calls if calls else None})
    return rows


def print_table(rows):
    print("| operation, milliseconds    |  count |     p50 |     p90 |     p99 |     max | in server, mean |")
    print("|----------------------------|-------:|--------:|--------:|--------:|--------:|----------------:|")
    for row in rows:
        times = " | ".join(f"{row[part] * 1e3:7.1f}" for part in ("p50", "p90", "p99", "max"))
        mean = "" if row["server_mean"] is None else f"{row['server_mean'] * 1e3:.2f}"
        print(f"| {row['operation']:<26} | {row['count']:6} | {times} | {mean:>15} |")


async def at_once(callers, deed):
    await asyncio.gather(*(caller.live(deed) for caller in callers))


async def work(options, server, load, report):
    began = time.perf_counter()
    operator = Operator(server, server.token("operator", "--operator"))
    tokens = [server.token(f"caller-{number}") for number in range(options.callers)]
    report["tokens_seconds"] = time.perf_counter() - began
    print(f"{options.callers} tokens made by `belljar token add` in {report['tokens_seconds']:.1f} s", flush=True)
    server.start()
    server.wait_until_ready()

    callers = [Caller(load, number, token, options.seed) for number, token in enumerate(tokens)]
    load.next_phase()
    await at_once(callers, Caller.begin)
    figures = load.next_phase()
    report["begin"] = {"seconds": figures.seconds(), "rows": table(figures, {})}
    made = sum(caller.begun for caller in callers)
    print(f"{made} contexts made, all asked for at once, in {figures.seconds():.1f} s\n", flush=True)

    before, used = await operator.read(), usage(server)
    load.next_phase()
    tasks = [asyncio.create_task(caller.live()) for caller in callers if caller.begun]
    await asyncio.sleep(options.seconds)
    figures = load.next_phase()
    used = {who: (now - used[who]) / figures.seconds() for who, now in usage(server).items()}
    after = await operator.read()
    rows = table(figures, {name: value - before.get(name, 0) for name, value in after.items()})
    report["load"] = {"seconds": figures.seconds(), "calls": figures.count(), "rows": rows, "processors": used,
                      "server_memory_peak": memory_peak(server.pid)}
    print_table(rows)
    print(f"\n{figures.count()} calls in {figures.seconds():.1f} s: {figures.count() / figures.seconds():,.0f} /s")
    print("processors in use: " + ", ".join(f"{who} {value:.2f}" for who, value in used.items()))
    print(f"server's memory, peak: {memory_peak(server.pid) / 1e6:.0f} MB\n", flush=True)

    if options.kill:
        await kill(options, server, load, callers, operator, report)
    load.stop = True
    await asyncio.gather(*tasks)


async def kill(options, server, load, callers, operator, report):
    server.look()
    load.next_phase()
    load.down, load.kills = True, load.kills + 1
    for caller in callers:
        caller.had = bool(caller.context) and not caller.stopping
    server.process.kill()
    server.process.wait()
    load.restarted = time.perf_counter()
    server.start()
    load.down = False
    for _ in range(RESUME_LIMIT * 10):
        if all(caller.kills == load.kills for caller in callers if caller.begun and caller.failures < MAX_FAILURES):
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(options.after)
    figures = load.next_phase()
    had = sum(caller.had for caller in callers)
    survived = sum(caller.had and caller.survived for caller in callers)
    report["kill"] = {
        "contexts_before": had, "contexts_after": survived, "interrupted": load.interrupted,
        "first_answer_seconds": load.first_answer, "all_checked_seconds": load.last_resumed,
        "sandboxes_after": (await operator.read()).get("belljar_sandboxes"), "rows": table(figures, {}),
        "calls": figures.count(), "server_memory_peak": memory_peak(server.pid),
    }
    print(f"killed (-9) under load and started again: {had} contexts before, {survived} after with their variables; "
          f"{load.interrupted} calls interrupted")
    if load.first_answer and load.last_resumed:
        print(f"first answer {load.first_answer:.2f} s after the start, every context checked after "
              f"{load.last_resumed:.2f} s; {figures.count()} calls since")


def finish(server, report):
    """Ends the server and says what is left of it."""
    if server.process.poll() is not None:
        # Its sandboxes wait for another one.
        print(f"the server had ended with code {server.process.returncode}", flush=True)
        server.start()
        server.wait_until_ready()
    code, seconds = server.stop()
    report.update(stop_code=code, stop_seconds=seconds, left=server.left())
    alike = (re.sub(r"[0-9a-f-]{8,}|\d+", "#", line.split(" ", 1)[1]) for line in server.warnings())
    report["warnings"] = collections.Counter(alike)
    left = ", ".join(report["left"]) or "nothing"
    print(f"stopped with SIGTERM in {seconds:.1f} s, code {code}; left behind: {left}")
    for line, count in report["warnings"].most_common(5):
        print(f"in the log, {count} times: {line[:300]}")


def conclude(load, report):
    """Whether all is well."""
    report.update(throttled=load.throttled, not_ready=load.not_ready)
    kinds = ("lost", "crossed", "errors", "gone")
    for kind in kinds:
        report[kind] = getattr(load, kind)
        for line in report[kind][:10]:
            print(f"{kind}: {line}")
    counts = ", ".join(f"{len(report[kind])} {kind}" for kind in kinds)
    print(f"{counts}; {load.throttled} times 429, {load.not_ready} times not ready")
    killed = report.get("kill", {"contexts_before": 0, "contexts_after": 0})
    survived = killed["contexts_before"] == killed["contexts_after"]
    return survived and not (any(report[kind] for kind in kinds) or report["left"] or report["stop_code"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60, help="how long the load lasts before the server is killed")
    parser.add_argument("--after", type=float, default=5, help="and how long it goes on afterwards")
    parser.add_argument("--pause", type=float, default=0, help="seconds that a caller waits between calls, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    if not os.access(BELLJAR, os.X_OK):
        sys.exit(f"there is no server at {BELLJAR}: run `make build` first")

    version = subprocess.run([BELLJAR, "--version"], capture_output=True, text=True).stdout.strip()
    print(f"{version}; {os.cpu_count()} processors, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}")
    # Whatever ends this test must end the server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    server, report = Server(), {"version": version, "options": vars(options), "left": [], "stop_code": 0}
    load, done = Load(server, options.pause), False
    try:
        asyncio.run(work(options, server, load, report))
        done = True
    except Unanswered as error:
        print(f"the server cannot be reached: {error}")
    finally:
        if server.process:
            finish(server, report)
        passed = conclude(load, report) and done
        if passed:
            shutil.rmtree(server.home)
        else:
            print(f"what the server logged is in {server.home}")
        if options.json:
            Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
