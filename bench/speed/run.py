#!/usr/bin/env python3
"""Belljar's speed beside floors and peers on this machine, in one run: `make bench`, `make bench BENCH=--quick`.

Belljar is reached through its real doors by a client that costs next to nothing (`bench/client`). The others are installed below
target/bench-speed and measured in turns with it. Figures are medians unless they say otherwise. Run it on a quiet machine.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import calls
import crowds
import driver
import memory
import report
import steps
from contenders import Bench
from figures import Figures
from goals import budgets, goals

PARTS = {part.__name__: part for part in (calls.runs, calls.creates, calls.starts, calls.outputs, calls.javascript, steps.steps,
                                          crowds.together, memory.memory, crowds.files, crowds.thousand, crowds.scale)}


def machine():
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    version = subprocess.run([driver.BELLJAR, "--version"], capture_output=True, text=True).stdout.strip()
    return (f"{version}, {time.strftime('%Y-%m-%d', time.gmtime())}; {os.cpu_count()} × {model[1] if model else platform.machine()}, "
            f"Linux {platform.release().split('-')[0]}, load {os.getloadavg()[0]:.1f} at the start.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and contexts: about six minutes")
    parser.add_argument("--no-peers", action="store_true", help="Belljar and the floors alone; nothing is installed")
    parser.add_argument("--docs", action="store_true", help="write docs/performance.md, its pictures, and the table in README.md")
    parser.add_argument("--strict", action="store_true", help="fail when a budget or goal is missed")
    parser.add_argument("--json", metavar="FILE", default=driver.CACHE / "figures.json", help="where the figures go (default: %(default)s)")
    parser.add_argument("part", nargs="*", help=f"only these: {', '.join(PARTS)}")
    options = parser.parse_args()
    unknown = set(options.part) - PARTS.keys()
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    driver.must_exist()
    began, where = time.time(), machine()
    figures = Figures()
    client = driver.Driver()
    bench = Bench(client, figures, options.quick, not options.no_peers)
    try:
        for name, part in PARTS.items():
            if not options.part or name in options.part:
                started = time.time()
                part(bench)
                print(f"{name}: {time.time() - started:.0f} s", file=sys.stderr)
    finally:
        bench.close()
        client.close()
    seconds = time.time() - began
    print("\n".join(report.whole(figures, where, bench.missing, seconds, partly=options.part)))
    Path(options.json).write_text(json.dumps({"machine": where, "missing": bench.missing, **figures.as_json()}, indent=1) + "\n")
    if options.docs:
        report.write(figures, where, bench.missing, seconds)
    # With only some parts there is nothing to miss in the others.
    missed = [f"{goal.what}: {goal.measured}" for goal in budgets(figures) + goals(figures) if goal.met is False or goal.met is None and not options.part]
    print(f"\nmissed: {'; '.join(missed)}" if missed else "\nnothing missed", file=sys.stderr)
    sys.exit(1 if options.strict and missed else 0)


if __name__ == "__main__":
    main()
