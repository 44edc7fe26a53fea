#!/usr/bin/env python3
"""What a sandbox costs on each backend, and what the engine's own commands cost, in one run.

    bench/docker.py [ROUNDS]      default 9

Starts a Docker daemon of its own and stops it. Needs root, dockerd, and templates (`belljar setup`). Every round measures
each thing once, in turns, so that whatever else the machine does is spread over all of them."""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/clients/python"))
from harness import Raw, home, wait_until  # noqa: E402

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 9
os.environ["PATH"] += ":/usr/sbin"


class Engine:
    def __init__(self, work):
        self.socket = f"unix://{work}/socket"
        self.log = open(f"{work}/log", "w")
        self.daemon = subprocess.Popen(
            ["dockerd", "--data-root", f"{work}/data", "--exec-root", f"{work}/exec", "-H", self.socket, "-p", f"{work}/pid",
             "--bridge=none", "--iptables=false", "--ip-masq=false"], stdout=self.log, stderr=self.log)
        if not wait_until(lambda: self.run("info", check=False).returncode == 0, 60):
            sys.exit("dockerd does not run here: " + Path(f"{work}/log").read_text()[-2000:])

    def run(self, *arguments, check=True, **how):
        return subprocess.run(["docker", "-H", self.socket, *arguments], capture_output=True, check=check, **how)

    def end(self):
        self.daemon.send_signal(signal.SIGTERM)
        self.daemon.wait(60)


class Backend:
    """A server with a pool, and one without."""

    def __init__(self, **settings):
        self.warm = Raw(POOL_SIZE=2, POOL_LANGUAGES="python", toolsets="contexts", **settings)
        self.cold = Raw(POOL_SIZE=0, toolsets="contexts", **settings)
        self.context = self.call(self.warm, "create_context", name="runs")["context_id"]
        self.call(self.cold, "create_context", name="first")

    @staticmethod
    def call(server, tool, **arguments):
        return server.call(tool, wait=300, **arguments)

    def create(self, server):
        began = time.perf_counter()
        context = self.call(server, "create_context", name="timed")["context_id"]
        took = time.perf_counter() - began
        self.call(server, "stop_context", context_id=context)
        return took

    def run(self):
        began = time.perf_counter()
        self.call(self.warm, "run_code", context_id=self.context, code="1 + 1")
        return time.perf_counter() - began

    def close(self):
        self.warm.close()
        self.cold.close()


def timed(work):
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main():
    work = tempfile.mkdtemp(dir="/var/tmp")
    templates = home() / "templates"
    os.environ["BELLJAR_HOME"] = f"{work}/home"
    os.mkdir(f"{work}/home")
    shutil.copytree(templates, f"{work}/home/templates", symlinks=True)
    engine, backends = Engine(work), {}
    try:
        for directory in ("usr", "etc", "tmp", "proc", "sys", "dev", "run", "var/tmp"):
            os.makedirs(f"{work}/root/{directory}")
        for directory in ("bin", "sbin", "lib", "lib64"):
            os.symlink(f"usr/{directory}", f"{work}/root/{directory}")
        tar = subprocess.run(["tar", "-C", f"{work}/root", "-c", "."], capture_output=True, check=True).stdout
        engine.run("import", "-", "bare", input=tar)
        backends = {"local": Backend(BACKEND="local"), "docker": Backend(BACKEND="docker", DOCKER_HOST=engine.socket)}
        bare = ["--network", "none", "-v", "/usr:/usr:ro", "bare"]
        engine.run("run", "-d", "--name", "exec", *bare, "sleep", "infinity")
        python = ["python3", "-c", "1 + 1"]
        things = {}
        for name, backend in backends.items():
            things[f"`create_context`, {name}, pool warm"] = lambda b=backend: b.create(b.warm)
            things[f"`create_context`, {name}, pool empty"] = lambda b=backend: b.create(b.cold)
            things[f"`run_code(\"1 + 1\")`, {name}"] = backend.run
        things["`docker run … true`"] = lambda: timed(lambda: engine.run("run", "--rm", *bare, "true"))
        things["`docker run … python3 -c '1 + 1'`"] = lambda: timed(lambda: engine.run("run", "--rm", *bare, *python))
        things["`docker exec … python3 -c '1 + 1'`"] = lambda: timed(lambda: engine.run("exec", "exec", *python))
        figures = {name: [] for name in things}
        for number in range(ROUNDS + 1):
            for name, thing in things.items():
                # Whoever was taken from the pool is replaced before the next is timed.
                time.sleep(0.5 if "warm" in name else 0)
                took = thing()
                if number:
                    figures[name].append(took * 1000)
        print(f"Medians of {ROUNDS} rounds in ms, {os.cpu_count()} processors, Linux {os.uname().release}, "
              f"Docker {engine.run('version', '-f', '{{.Server.Version}}', text=True).stdout.strip()}.\n")
        print("| | median | slowest |\n|---|---:|---:|")
        for name, values in figures.items():
            print(f"| {name} | {statistics.median(values):.1f} | {max(values):.1f} |")
    finally:
        for backend in backends.values():
            backend.close()
        engine.run("rm", "-f", "exec", check=False)
        engine.end()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
