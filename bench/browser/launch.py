"""The first `browser_goto` of a new sandbox beside the bare start of the same Chromium, and what an idle browser takes."""

import fcntl
import functools
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import pages
from tools import Belljar

PAGE = "login form"


@functools.cache
def serve():
    """The pages on this machine's loopback, for browsers outside of sandboxes: the port."""
    scope = {"files": pages.files()}
    exec(pages.SERVER, scope)
    return scope["server"].server_port


class Bare:
    """Chromium on a pipe, with nothing around it but the flags that sandboxed ones have."""

    def __init__(self, chromium, flags, url):
        self.profile = tempfile.mkdtemp(prefix="bench-bare-")
        to_read, self.to = os.pipe()
        self.come, to_write = os.pipe()

        def wire():
            # Both ends may already be 3 or 4: move them out of the way first.
            a, b = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, to_write))
            os.dup2(a, 3)
            os.dup2(b, 4)

        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        self.buffer = b""
        began = time.perf_counter()
        self.process = subprocess.Popen([chromium, *flags, *sandbox, f"--user-data-dir={self.profile}", "about:blank"], preexec_fn=wire,
                                        close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        targets = self.call(1, "Target.getTargets")["targetInfos"]
        target = next(target["targetId"] for target in targets if target["type"] == "page")
        session = self.call(2, "Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call(3, "Page.enable", session)
        self.call(4, "Page.navigate", session, url=url)
        while self.message().get("method") != "Page.loadEventFired":
            pass
        self.seconds = time.perf_counter() - began

    def message(self):
        while b"\0" not in self.buffer:
            chunk = os.read(self.come, 1 << 20)
            if not chunk:
                raise EOFError("Chromium ended")
            self.buffer += chunk
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, number, method, session=None, **params):
        request = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self.to, json.dumps(request).encode() + b"\0")
        while (message := self.message()).get("id") != number:
            pass
        return message["result"]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.come)
        shutil.rmtree(self.profile, ignore_errors=True)


def processes():
    """Pid to its parent and its arguments."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            found[int(path.name)] = (parent, (path / "cmdline").read_bytes().decode(errors="replace").split("\0"))
        except OSError:
            pass
    return found


def below(all_of_them, pids):
    """These and all that they started, directly or not."""
    found = list(pids)
    for pid in found:
        found += [child for child, (parent, _) in all_of_them.items() if parent == pid]
    return found


def chromium_below(server):
    """Pids of the browser in a sandbox of this server, the browser's own first, and its arguments."""
    all_of_them = processes()

    def is_browser(line):
        return (any(word.startswith("--user-data-dir=/tmp/browser/profile-") for word in line)
                and not any(word.startswith("--type=") for word in line))

    roots = [pid for pid in below(all_of_them, [server]) if is_browser(all_of_them[pid][1])]
    return below(all_of_them, roots), all_of_them[roots[0]][1]


def memory(pids):
    """Proportional, so that what several share counts once: bytes."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def report(binary, chromium, rounds):
    belljar = Belljar(binary)
    ours, bare, sizes = [], [], []
    try:
        for _ in range(rounds):
            belljar.fresh()
            ours.append(belljar.goto(PAGE) * 1000)
            pids, line = chromium_below(belljar.mcp.process.pid)
            flags = [word for word in line[1:] if word.startswith("--") and not word.startswith("--user-data-dir")]
            time.sleep(1)
            sizes.append(memory(pids) / (1 << 20))
            belljar.call("sandbox_destroy")
            port = serve()
            browser = Bare(chromium, flags, f"http://127.0.0.1:{port}{pages.path(PAGE)}")
            bare.append(browser.seconds * 1000)
            browser.close()
    finally:
        belljar.close()
    first, launch = statistics.median(ours), statistics.median(bare)
    ratio = first / launch
    met = ratio <= 1.5
    lines = [f"First `browser_goto` of a new sandbox: {first:.0f} ms; bare start of the same Chromium until the same page has loaded: "
             f"{launch:.0f} ms; {ratio:.2f} × (goal 1.5 ×: {'met' if met else '**missed**'}).",
             f"Memory of the browser in an idle sandbox: {statistics.median(sizes):.0f} MiB."]
    return lines, [(f"first goto: {ratio:.2f} × the bare launch (wanted 1.50)", met)]
