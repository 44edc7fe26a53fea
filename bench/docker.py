#!/usr/bin/env python3
"""What a sandbox costs on each backend, and what the engine's own commands cost, in one run.

    bench/docker.py [--docs] [ROUNDS]      default 9; --docs writes the table in docs/docker.md

Starts a Docker daemon of its own and stops it. Needs root, dockerd, and templates (`belljar setup`). Every round measures
each thing once, in turns, so that whatever else the machine does is spread over all of them. Run it on a quiet machine."""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/clients/python")]
from dockerd import Engine, NoEngine  # noqa: E402
from harness import BELLJAR, Raw, home  # noqa: E402

DOCS = ROOT / "docs/docker.md"
MARKS = ("<!-- bench-docker: written by `make bench-docker BENCH=--docs`, do not edit by hand -->\n", "<!-- /bench-docker -->")
NOTHING = "–"


def timed(work):
    began = time.perf_counter()
    done = work()
    return done, (time.perf_counter() - began) * 1000


class Backend:
    """A server with a pool, and one without."""

    def __init__(self, **settings):
        self.servers = {"warm": Raw(POOL_SIZE=2, POOL_LANGUAGES="python", toolsets="contexts", **settings),
                        "empty": Raw(POOL_SIZE=0, toolsets="contexts", **settings)}
        self.context = {pool: self.call(pool, "create_context", name="lasting")["context_id"] for pool in self.servers}

    def call(self, pool, tool, **arguments):
        return self.servers[pool].call(tool, wait=300, **arguments)

    def run(self, pool, context):
        return self.call(pool, "run_code", context_id=context, code="1 + 1")

    def measure(self):
        """What → milliseconds, each once."""
        took = {}
        for pool in self.servers:
            # Whoever was taken from the pool is replaced before the next is timed.
            time.sleep(1 if pool == "warm" else 0)
            made, create = timed(lambda: self.call(pool, "create_context", name="timed"))
            took[f"`create_context`, pool {pool}"] = create
            took[f"its first `run_code`, pool {pool}"] = timed(lambda: self.run(pool, made["context_id"]))[1]
            self.call(pool, "stop_context", context_id=made["context_id"])
        took["every other `run_code`"] = timed(lambda: self.run("warm", self.context["warm"]))[1]
        return took

    def close(self):
        for server in self.servers.values():
            server.close()


class Bare:
    """The engine's own commands, with nothing of ours."""

    def __init__(self, engine):
        self.engine, self.options = engine, ["--network", "none", "-v", "/usr:/usr:ro", "bare"]
        engine.bare_image("bare")
        engine.run("run", "-d", "--name", "lasting", *self.options, "sleep", "infinity")

    def measure(self):
        python = ["python3", "-c", "1 + 1"]
        commands = {"`docker run … true`": ["run", "--rm", *self.options, "true"],
                    "`docker run … python3 -c '1 + 1'`": ["run", "--rm", *self.options, *python],
                    "`docker exec … python3 -c '1 + 1'`": ["exec", "lasting", *python]}
        return {what: timed(lambda: self.engine.run(*command))[1] for what, command in commands.items()}

    def close(self):
        self.engine.run("rm", "-f", "lasting", check=False)


def measure(engine, rounds):
    """What → who → milliseconds of each round."""
    figures, parties = {}, {}
    try:
        parties["local"] = Backend(BACKEND="local")
        parties["docker"] = Backend(BACKEND="docker", DOCKER_HOST=engine.host)
        parties["the engine alone"] = Bare(engine)
        for number in range(rounds + 1):
            for who, party in parties.items():
                for what, took in party.measure().items():
                    # The first round warms up.
                    if number:
                        figures.setdefault(what, {}).setdefault(who, []).append(took)
    finally:
        for party in parties.values():
            party.close()
    return figures, list(parties)


def table(figures, parties, note):
    def cell(values):
        return f"{statistics.median(values):.1f} ({max(values):.0f})" if values else NOTHING
    lines = [note, "", f"| ms, median (slowest) | {' | '.join(parties)} |", "|---|" + "---:|" * len(parties)]
    for what, by in figures.items():
        lines.append(f"| {what} | " + " | ".join(cell(by.get(who)) for who in parties) + " |")
    return "\n".join(lines) + "\n"


def write(text):
    before, rest = DOCS.read_text().split(MARKS[0])
    DOCS.write_text(before + MARKS[0] + "\n" + text + "\n" + MARKS[1] + rest.split(MARKS[1])[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", action="store_true", help="write the table in docs/docker.md")
    parser.add_argument("rounds", nargs="?", type=int, default=9)
    options = parser.parse_args()
    try:
        engine = Engine("THE FIGURES OF THE DOCKER BACKEND")
    except NoEngine:
        return 77
    try:
        templates = home() / "templates"
        os.environ["BELLJAR_HOME"] = str(engine.work / "home")
        shutil.copytree(templates, engine.work / "home/templates", symlinks=True)
        figures, parties = measure(engine, options.rounds)
        version = engine.run("version", "-f", "{{.Server.Version}}", text=True).stdout.strip()
        ours = subprocess.run([BELLJAR, "--version"], capture_output=True, text=True).stdout.strip()
    finally:
        engine.close()
    text = table(figures, parties, f"{ours}, {time.strftime('%Y-%m-%d', time.gmtime())}; {os.cpu_count()} processors, Linux "
                 f"{os.uname().release.split('-')[0]}, Docker {version}, {options.rounds} rounds.")
    print(text)
    if options.docs:
        write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
