"""Runs the documentation. Called by run.sh, in a network, with mounts and processes of its own."""

import fcntl
import json
import os
import re
import shlex
import socket
import struct
import subprocess
import sys
import time
import tomllib
import unittest
from collections import Counter
from pathlib import Path

import blocks as b
import links
import pictures
import shown
import walk
from page import BELLJAR, HERE, REPOSITORY, WORK, Failed, Shell, environment

PAGES = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "escape/README.md", "tests/docs/README.md"]
# Directories that pages speak of; each of them is empty and the test's own.
PLACES = ["/srv", "/var/log"]
# Seconds that one command may take without being pointed out.
SLOW = 20
NAMES = "127.0.0.1 localhost box.example.org belljar.example.org\n::1 localhost\n"


def isolate():
    """The loopback device up, our own names for it, and empty directories in place of the machine's."""
    with socket.socket() as any_socket:
        up = struct.pack("16sh", b"lo", 1)
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS, IFF_UP
    hosts = WORK / "hosts"
    hosts.write_text(NAMES)
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
    for place in PLACES:
        if not REPOSITORY.is_relative_to(place):
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "docs", place], check=True)
    (WORK / "bin").mkdir()
    (WORK / "bin/belljar").symlink_to(BELLJAR)


def phases():
    return re.findall(r"^do_(\w+)\(\)", (REPOSITORY / "scripts/test.sh").read_text(), re.MULTILINE)


def parse_only(block, home):
    """What is not run is at least understood: commands of ours, and chores."""
    for line in b.lines(block.text):
        words = shlex.split(line, comments=True)
        while words and (re.fullmatch(r"[A-Z_]+=.*", words[0]) or words[0] == "sudo"):
            words.pop(0)
        ends = [words.index(sign) for sign in ("|", ">", "&&", ";", "||") if sign in words]
        words = words[:min(ends, default=len(words))]
        if words and words[0].endswith("belljar"):
            command = [str(BELLJAR), *words[1:], "--help"]
        elif words and words[0] == "make":
            command = ["make", "-n", "-C", str(REPOSITORY), *words[1:]]
        else:
            continue
        done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise Failed(f"{block.place}: `{line}` is not understood\n{done.stderr}")


def sample(block, shell):
    """Files that a page shows are at least files of that kind."""
    if block.language == "json" and "…" not in block.text:
        try:
            json.loads(block.text)
        except ValueError as error:
            raise Failed(f"{block.place}: this is not JSON: {error}") from None
    if block.language == "toml":
        try:
            table = tomllib.loads(block.text)
        except ValueError as error:
            raise Failed(f"{block.place}: this is not TOML: {error}") from None
        path = shell.save(f".sample-{block.line}.toml", block.text)
        kind = "mcp --pool-size 0 --toolkit" if "tool" in table else "config show --config"
        shell.run(f"belljar {kind} {path}", block.place)


def run_block(block, shell, counts):
    """What it printed."""
    says = block.says
    if b.WITH_SERVER in says:
        shell.run("with_server", f"{block.place}: the server that it needs")
    if block.language in ("python", "js"):
        path = shell.save(f".program-{block.line}.{'py' if block.language == 'python' else 'js'}", block.text)
        return shell.run(f"run_{block.language} {path}", block.place)
    if block.language == "console":
        for command, printed in b.conversation(block.text):
            wrong = shown.difference(printed, shell.run(command, f"{block.place}: `{command}`").splitlines())
            if wrong:
                raise Failed(f"{block.place}: `{command}`: {wrong}")
            counts["compared"] += 1
        return ""
    if b.SERVERS in says:
        for line in b.lines(block.text):
            shell.run(f"one_server {shlex.quote(line)}", f"{block.place}: `{line}`")
        return ""
    if b.ANSWERS in says:
        answer = f"python3 {shlex.quote(str(HERE / 'answer.py'))} {shlex.quote(says[b.ANSWERS])} "
        return "".join(shell.run(answer + line, f"{block.place}: `{line}`") for line in b.lines(block.text))
    if b.EXITS in says:
        return shell.run(f"status=0\n( {block.text}) || status=$?\ntest $status = {int(says[b.EXITS])}", block.place)
    return shell.run(block.text, block.place)


def run_page(page, counts):
    found = b.blocks(page, (REPOSITORY / page).read_text())
    for block in found:
        if phase := block.says.get(b.RUN_BY):
            if phase not in phases():
                raise Failed(f"{block.place}: there is no phase {phase} in scripts/test.sh")
    if not any(block.language in b.COMMANDS or block.language in ("json", "toml") for block in found):
        return
    shell, well, printed = Shell(page), False, ""
    try:
        for block in found:
            if block.runs():
                printed = run_block(block, shell, counts)
                counts["run"] += 1
            elif block.language in b.COMMANDS:
                parse_only(block, shell.directory / "home")
                reason = block.says.get(b.NOT_RUN) or f"phase {block.says[b.RUN_BY]}"
                counts["not run" if b.NOT_RUN in block.says else "elsewhere"] += 1
                print(f"    {'not run' if b.NOT_RUN in block.says else 'run by'}  {block.place}: {reason}")
            elif b.FILE in block.says:
                shell.save(block.says[b.FILE], block.text)
                sample(block, shell)
            elif b.PRINTS in block.says:
                if wrong := shown.difference(block.text.splitlines(), printed.splitlines()):
                    raise Failed(f"{block.place}: {wrong}")
                counts["compared"] += 1
            else:
                sample(block, shell)
        well = True
    finally:
        shell.close(well)
    if shell.slowest[0] > SLOW:
        print(f"    slow  {shell.slowest[0]:.0f} s: {shell.slowest[1]}")


def own_tests():
    suite = unittest.defaultTestLoader.discover(str(HERE), "test_*.py")
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=0).run(suite)
    if not result.wasSuccessful():
        raise Failed("the test of the documentation is wrong itself")


def main(chosen):
    pages = PAGES + sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").glob("*.md"))
    works = [("the test itself", own_tests), ("links", lambda: links.check(REPOSITORY, pages)), ("walk", walk.walk),
             ("pictures", pictures.check)]
    counts, failed = Counter(), []
    works += [(page, lambda page=page: run_page(page, counts)) for page in pages]
    for name in chosen:
        if name not in dict(works):
            sys.exit(f"there is no page {name}")
    isolate()
    for name, work in works:
        if chosen and name not in chosen:
            continue
        began = time.monotonic()
        try:
            work()
        except (Failed, b.Mistake) as error:
            failed.append(name)
            print(f"FAIL {name}: {error}", flush=True)
        else:
            print(f"ok   {name} ({time.monotonic() - began:.1f} s)", flush=True)
    print(f"\n{counts['run']} blocks of commands run, {counts['compared']} outputs compared, "
          f"{counts['elsewhere']} run by other phases, {counts['not run']} not run for the reasons above")
    if failed:
        sys.exit(f"failed: {' '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
