#!/usr/bin/env python3
"""Records a real session on a terminal as an animated picture: docs/images/terminal.svg.

    scripts/record.py [FILE]

Every command is typed into a real shell on a real terminal, with the machine's templates and a home of its own; what
it prints is shown when it came, long waits shortened. Nothing is drawn by hand and nobody else's service is used.
BELLJAR names the binary (default: target/release/belljar)."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
BELLJAR = Path(os.environ.get("BELLJAR") or ROOT / "target/release/belljar").resolve()
COLUMNS, ROWS = 96, 24
# Seconds: for a keystroke, the longest wait that is shown, before the next command, at the end.
KEY, WAIT, PAUSE, HOLD = 0.035, 1.5, 1.4, 6.0
WIDTH, HEIGHT, LEFT, TOP = 8.4, 20, 16, 44

AGENT = ("import numpy as np, pandas as pd\n"
         "sales = pd.DataFrame({'city': ['Rome', 'Oslo', 'Rome', 'Oslo'], 'amount': [120, 80, 140, 95]})")
SESSION = [
    "# One line, in a fresh sandbox with numpy and pandas.",
    "belljar run -c 'import numpy as np; np.arange(10).reshape(2, 5).mean(axis=0)'",
    "# It cannot see your files, nor the network.",
    "belljar run -c 'open(\"/etc/shadow\")'",
    "belljar run -c 'import socket; socket.create_connection((\"192.0.2.1\", 80))' 2>&1 | tail -n 1",
    "# An agent works on a server of yours. Look, and step in.",
    "belljar ps",
    "echo 'sales.groupby(\"city\").amount.sum()' | belljar shell agent",
    "belljar exec agent -- ps -eo pid,user,comm",
    "belljar stop agent",
    "# What holds it? An attack from inside, on this machine.",
    "belljar doctor | tail -n 12",
]


class Server:
    """A server with an agent's context, for the second half."""

    def __init__(self, home):
        data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
        templates = Path(os.environ.get("BELLJAR_HOME") or os.path.join(data, "belljar"), "templates").resolve()
        share = home / ".local/share/belljar"
        share.mkdir(parents=True)
        (share / "templates").symlink_to(templates)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (home / "bin").mkdir()
        (home / "bin/belljar").symlink_to(BELLJAR)
        path = f"{home}/bin:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        self.env = {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "TERM": "xterm-256color", "PS1": "",
                    "BELLJAR_PORT": str(self.port)}
        self.process = subprocess.Popen([BELLJAR, "serve"], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit("the server does not start; `belljar doctor` says why")
            time.sleep(0.1)
        self.call("create_context", name="agent", description="what an agent left")
        self.call("run_code", context_id="agent", code=AGENT)

    def healthy(self):
        try:
            return urllib.request.urlopen(f"http://localhost:{self.port}/health", timeout=5).status == 200
        except OSError:
            return False

    def call(self, tool, **arguments):
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        request = urllib.request.Request(f"http://localhost:{self.port}/mcp", json.dumps(message).encode(),
                                         {"Content-Type": "application/json"})
        result = json.load(urllib.request.urlopen(request, timeout=120))["result"]
        if result.get("isError"):
            sys.exit(f"{tool}: {result}")

    def close(self):
        self.process.terminate()
        self.process.wait(120)


def run(command, env, cwd):
    """What a command writes to a terminal: pairs of seconds and bytes."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe("bash", ["bash", "--norc", "-c", command], env)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    began, parts = time.monotonic(), []
    while True:
        select.select([terminal], [], [], 120)
        try:
            part = os.read(terminal, 65536)
        except OSError:  # how a terminal says that everybody has left
            break
        if not part:
            break
        parts.append((time.monotonic() - began, part))
    os.close(terminal)
    os.waitpid(pid, 0)
    return parts


def record():
    """Lines of (seconds, column, style, text), in the order in which they appear."""
    home = Path(tempfile.mkdtemp(prefix="belljar-record-"))
    server = None
    try:
        server = Server(home)
        now, lines = 0.8, []
        for command in SESSION:
            if command.startswith("#"):
                lines.append([(now, 0, "remark", command)])
                now += PAUSE
                continue
            typed, column = [(now, 0, "prompt", "$")], 2
            for word in re.findall(r"\S+\s*", command):
                now += KEY * len(word)
                typed.append((now, column, "typed", word.rstrip()))
                column += len(word)
            lines.append(typed)
            if column > COLUMNS:
                sys.exit(f"longer than the terminal: {command}")
            now += 0.3
            for at, text in printed(run(command, server.env, home)):
                lines.append([(now + min(at, WAIT), 0, "", text)])
            now = max([now, *(line[0][0] for line in lines)]) + PAUSE
        return lines, now - PAUSE + HOLD
    finally:
        if server:
            server.close()
        shutil.rmtree(home, ignore_errors=True)


def printed(parts):
    """Lines with the time of their end, without what only a terminal needs."""
    found, rest = [], ""
    for at, part in parts:
        *whole, rest = (rest + part.decode(errors="replace")).split("\n")
        found += [(at, line) for line in whole]
    if rest:
        found.append((parts[-1][0], rest))
    for at, line in found:
        line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip("\r").rpartition("\r")[2].replace("\t", "    ")
        for start in range(0, max(len(line), 1), COLUMNS):
            yield at, line[start:start + COLUMNS].rstrip()


def percent(at, total):
    return f"{100 * at / total:.2f}%"


def svg(lines, total):
    styles, texts, shown = [], [], {}
    for number, line in enumerate(lines):
        for at, column, style, text in line:
            if not text:
                continue
            at = round(at, 2)
            if at not in shown:
                shown[at] = f"t{len(shown)}"
                styles.append(f"@keyframes {shown[at]}{{0%{{opacity:0}}{percent(at, total)}{{opacity:1}}}}"
                              f".{shown[at]}{{animation-name:{shown[at]}}}")
            x, y = LEFT + column * WIDTH, TOP + number * HEIGHT + 14
            texts.append(f'<text class="{(style + " " + shown[at]).strip()}" x="{x:.1f}" y="{y}" '
                         f'textLength="{len(text) * WIDTH:.1f}">{escape(text)}</text>')
    # The screen holds so many lines; what comes after pushes the first ones out.
    moves, last = ["0%{transform:translateY(0)}"], 0
    for number, line in enumerate(lines):
        if number >= ROWS:
            last = (number - ROWS + 1) * HEIGHT
            moves.append(f"{percent(line[0][0], total)}{{transform:translateY(-{last}px)}}")
    width, height = round(2 * LEFT + COLUMNS * WIDTH), TOP + ROWS * HEIGHT + 12
    newline = "\n"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>A session on a terminal, recorded by scripts/record.py</title>
<style>
text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d7dce2;white-space:pre;animation:{total:.1f}s step-end infinite}}
.prompt{{fill:#6cc7a6}}.typed{{fill:#fff}}.remark{{fill:#8a94a3}}
#screen{{transform:translateY(-{last}px);animation:scroll {total:.1f}s step-end infinite}}
@keyframes scroll{{{"".join(moves)}}}
{newline.join(styles)}
@media (prefers-reduced-motion:reduce){{text,#screen{{animation:none}}}}
</style>
<rect width="{width}" height="{height}" rx="10" fill="#171b21"/>
<circle cx="22" cy="18" r="5" fill="#4a5361"/><circle cx="40" cy="18" r="5" fill="#4a5361"/><circle cx="58" cy="18" r="5" fill="#4a5361"/>
<clipPath id="glass"><rect y="{TOP - 2}" width="{width}" height="{height - TOP - 6}"/></clipPath>
<g clip-path="url(#glass)"><g id="screen">
{newline.join(texts)}
</g></g>
</svg>
"""


def main():
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/images/terminal.svg"
    if not BELLJAR.exists():
        sys.exit(f"there is no server at {BELLJAR}: run `make build` first")
    lines, total = record()
    target.write_text(svg(lines, total))
    print(f"{target}: {len(lines)} lines, {total:.0f} s")


if __name__ == "__main__":
    main()
