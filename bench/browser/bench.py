#!/usr/bin/env python3
"""Belljar's browser beside three others on the same Chromium and the same pages: `make bench-browser`.

Each server is spoken to over pipes. In every round each of them opens every page, reads it twice, clicks and types, one server
after the other, beginning with another one each time; figures are medians. Prints a table and which goals are met, and
writes both into docs/browser.md unless told otherwise. Run it on a quiet machine.
"""

import argparse
import collections
import json
import math
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import launch
import pages
from pages import PAGES
from tools import PEERS, Belljar

ROOT = Path(__file__).resolve().parents[2]
BELLJAR = os.path.abspath(os.environ.get("BELLJAR") or ROOT / "target/release/belljar")
CACHE = ROOT / "target/bench-browser"
DOCS = ROOT / "docs/browser.md"
CHROMIUM = "/usr/lib/chromium/chromium-headless-shell"
PACKAGES = ["@playwright/mcp@0.0.83", "chrome-devtools-mcp@1.11.0", "agent-browser@0.41.0", "gpt-tokenizer@4.0.0"]
STEPS = ["goto", "snapshot", "snapshot again", "click", "type"]
MARKS = ("<!-- bench-browser -->", "<!-- /bench-browser -->")


def install():
    stamp = CACHE / "stamp"
    if not stamp.exists() or stamp.read_text() != " ".join(PACKAGES):
        print(f"installing {', '.join(PACKAGES)} below {CACHE.relative_to(ROOT)}", file=sys.stderr)
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--prefix", CACHE, "--no-audit", "--no-fund", "--loglevel=error", *PACKAGES], check=True)
        stamp.write_text(" ".join(PACKAGES))


def tokens(texts):
    script = Path(__file__).with_name("tokens.mjs")
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    counted = subprocess.run(["node", script, CACHE / "node_modules"], input=lines, capture_output=True, text=True, check=True)
    return [int(line) for line in counted.stdout.split()]


def visit(tool, name):
    """One page, once: seconds of every step."""
    page = PAGES[name]
    times = {"goto": tool.goto(name), "snapshot": tool.snapshot(), "snapshot again": tool.snapshot()}
    button, field = tool.ref(page.button), tool.ref(page.field)
    times["click"] = tool.click(button)
    times["type"] = tool.type(field, f"text {random.randrange(1000)}")
    return times


def missing(tool, page):
    """How much of what can be used has no ref in the snapshot at hand."""
    return page.usable - collections.Counter(tool.listed())


def check_folded(belljar, page, lost):
    """What is not listed must be in folded rows that are counted, and any of it can be found. Returns what is not."""
    folded = sum(int(count.replace(",", "")) for count in re.findall(r"… ([\d,]+) more \w+ like these", belljar.text))
    unseen = sum(lost.values()) - folded * page.per_row
    if unseen == 0 and folded:
        for row in random.sample(range(page.rows - folded, page.rows), 20):
            found = belljar.find(page.find.format(row).strip())
            unseen += 0 if len(found) >= page.per_row else page.per_row
    return unseen


def check_counted(belljar):
    """What a reader has to count must be what is found. Returns how many of ten lines are not."""
    wrong = 0
    for line in random.sample(belljar.counted, min(10, len(belljar.counted))):
        belljar.find(re.search(r'"([^"]*)"', line)[1])
        wrong += line not in map(str.strip, belljar.text.split("\n"))
    return wrong


def least(text):
    """The shape that is agreed upon, with nothing in it but refs, roles and names."""
    head, said = text.split("\n", 1)
    said = json.loads(said)
    lines = re.findall(r'\[ref_[^]]*\] \w+(?: "[^"\n]*")?', said["elements"])
    return head + "\n" + json.dumps({**{key: said[key] for key in ("url", "title")}, "text": "", "elements": "\n".join(lines)}, separators=(",", ":"))


def measure(rounds, names, peers):
    port = launch.serve()
    tools = [Belljar(BELLJAR)] + [peer(CACHE, CHROMIUM, port) for peer in peers]
    figures = {(tool.name, name, step): [] for tool in tools for name in names for step in STEPS}
    read, bare, lost = {}, {}, {}
    try:
        for number in range(rounds + 1):
            order = tools[number % len(tools):] + tools[:number % len(tools)]
            for name in names:
                for tool in order:
                    try:
                        times = visit(tool, name)
                    except RuntimeError as error:
                        if tool is tools[0]:
                            raise
                        print(f"not counted: {error}", file=sys.stderr)
                        continue
                    if number == 0:
                        continue  # whatever starts, starts now
                    for step, seconds in times.items():
                        figures[tool.name, name, step].append(seconds * 1000)
                    if (tool.name, name) not in read:
                        tool.snapshot()
                        gone = missing(tool, PAGES[name])
                        lost[tool.name, name] = check_folded(tool, PAGES[name], gone) + check_counted(tool) if tool is tools[0] else sum(gone.values())
                        read[tool.name, name] = tool.whole()
                        bare[tool.name, name] = tool.elements()
            print(f"round {number} of {rounds}", file=sys.stderr)
    finally:
        for tool in tools:
            tool.close()
    bare = {key: text for key, text in bare.items() if text is not None}
    bare.update({("least", name): least(read[tools[0].name, name]) for name in names})
    counted = tokens([*read.values(), *bare.values()])
    counts = collections.defaultdict(lambda: math.inf, zip(read, counted))
    counts.update({(*key, "elements"): count for key, count in zip(bare, counted[len(read):])})
    lost = collections.defaultdict(lambda: math.inf, lost)
    return [tool.name for tool in tools], {key: statistics.median(values or [math.inf]) for key, values in figures.items()}, counts, lost


def number(ms):
    """`–` is for what never came to an end."""
    if ms == math.inf:
        return "–"
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}"


def report(tools, names, figures, counts, lost):
    ours, peers = tools[0], tools[1:]
    lines = ["| page | step | " + " | ".join(tools) + " | faster than the best | goal |", "|---|---|" + "---:|" * len(tools) + "---:|---|"]
    goals = []

    def goal(words, met):
        goals.append((words, met))
        return "met" if met else "**missed**"

    for name in names:
        for step in STEPS:
            best = min(figures[peer, name, step] for peer in peers)
            ratio = best / figures[ours, name, step]
            wanted = 5 if PAGES[name].big and step != "goto" and step != "type" else 1
            met = goal(f"{name}, {step}: {ratio:.2f} × (wanted {wanted} ×)", ratio >= wanted)
            lines.append(f"| {name} | {step}, ms | " + " | ".join(number(figures[tool, name, step]) for tool in tools) + f" | {ratio:.1f} × | {met} |")
        best = min(counts[peer, name] for peer in peers)
        share = counts[ours, name] / best
        floor = counts["least", name, "elements"] / best
        met = goal(f"{name}, tokens: {share:.2f} of the leanest (wanted 0.50; refs, roles and names in the agreed shape take {floor:.2f})", share <= .5)
        lines.append(f"| {name} | tokens | " + " | ".join(f"{counts[tool, name]:,}".replace("inf", "–") for tool in tools) + f" | {1 / share:.1f} × | {met} |")
        shown = (counts[tool, name, "elements"] for tool in tools)
        lines.append(f"| {name} | elements alone | " + " | ".join(f"{count:,}".replace("inf", "–") for count in shown) + " | | |")
        met = goal(f"{name}, without a ref: {lost[ours, name]} of {sum(PAGES[name].usable.values()):,}", lost[ours, name] == 0)
        lines.append(f"| {name} | without a ref | " + " | ".join(f"{lost[tool, name]:,}".replace("inf", "–") for tool in tools) + f" | | {met} |")
    return lines, goals


def write_docs(lines):
    text = DOCS.read_text()
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    DOCS.write_text(before + "\n".join([MARKS[0], "", *lines, "", MARKS[1]]) + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--pages", nargs="*", default=list(PAGES), choices=list(PAGES), metavar="PAGE")
    parser.add_argument("--peers", nargs="*", default=[peer.__name__ for peer in PEERS])
    parser.add_argument("--no-launch", action="store_true", help="leave out the first goto and the memory")
    parser.add_argument("--no-docs", action="store_true", help="leave docs/browser.md alone")
    options = parser.parse_args()
    if not os.path.exists(CHROMIUM):
        sys.exit("there is no Chromium: apt-get install chromium-headless-shell")
    install()
    began = time.time()
    peers = [peer for peer in PEERS if peer.__name__ in options.peers]
    tools, figures, counts, lost = measure(options.rounds, options.pages, peers)
    lines, goals = report(tools, options.pages, figures, counts, lost)
    print("\n".join(lines), flush=True)
    if not options.no_launch:
        more, launched = launch.report(BELLJAR, CHROMIUM, options.rounds)
        lines += ["", *more]
        print("\n".join(["", *more]), flush=True)
        goals += launched
    missed = [words for words, met in goals if not met]
    version = subprocess.run([CHROMIUM, "--version"], capture_output=True, text=True).stdout.strip()
    end = ["", f"{len(goals) - len(missed)} of {len(goals)} goals met"
              + (": not " + "; ".join(missed) if missed else "") + ".", "",
              f"Medians of {options.rounds} rounds, {time.strftime('%Y-%m-%d', time.gmtime(began))}, {os.cpu_count()} processors, "
              f"Linux {platform.release().split('-')[0]}, {version}. Tokens are those of o200k_base."]
    print("\n".join(end))
    if not options.no_docs:
        write_docs(lines + end)


if __name__ == "__main__":
    main()
