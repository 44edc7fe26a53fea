"""One page: a shell of its own in a directory of its own, which is given the page's commands one after the other."""

import fcntl
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY, WORK, BELLJAR = (Path(os.environ[name]) for name in ("REPOSITORY", "WORK", "BELLJAR"))
PATIENCE = float(os.environ.get("BELLJAR_TEST_PATIENCE") or 1)
# Nothing that a page shows takes longer, and what hangs shall not hang the test.
LIMIT = 120 * PATIENCE
DRIVER = """set -euo pipefail
source "$LIB"
if [ -e "$FIXTURE" ]; then source "$FIXTURE" >"$PAGE_DIR/fixture.out" 2>&1 </dev/null 3<&- 4>&-; fi
echo 0 >&4
while IFS= read -r piece <&3; do
    source "$piece" >"$piece.out" 2>&1 </dev/null 3<&- 4>&-
    echo 0 >&4
done
"""


class Failed(Exception):
    pass


def templates():
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(os.environ.get("BELLJAR_HOME") or os.path.join(data, "belljar"), "templates").resolve()


def environment(home):
    """A person's who has just come here. Tools keep their own directories: nobody waits for a compiler to be fetched."""
    tools = {"CARGO_HOME": ".cargo", "RUSTUP_HOME": ".rustup"}
    kept = {name: os.environ.get(name) or os.path.expanduser(f"~/{directory}") for name, directory in tools.items()}
    path = [str(WORK / "bin"), os.path.dirname(sys.executable), os.environ["PATH"]]
    return {"PATH": ":".join(path), "HOME": str(home), "LANG": "C.UTF-8", "TERM": "xterm", "USER": "root",
            "BELLJAR_TEST_PATIENCE": str(int(max(PATIENCE, 1))), "REPOSITORY": str(REPOSITORY), "EDITOR": "true",
            **{name: os.environ[name] for name in ("PLAYWRIGHT", "SERVERS", "WORK")}, **kept}


def new_home(path):
    share = path / ".local/share/belljar"
    share.mkdir(parents=True)
    (share / "templates").symlink_to(templates())
    return path


class Shell:
    def __init__(self, page):
        name = page.removesuffix(".md").replace("/", "-")
        self.directory = WORK / name
        home = new_home(self.directory / "home")
        self.cwd = self.directory / "work"
        self.cwd.mkdir()
        # Who follows the README has built Belljar in the directory they are in.
        (self.cwd / "target").symlink_to(REPOSITORY / "target")
        here, there = os.pipe(), os.pipe()
        pieces, done = (fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (here[0], there[1]))
        # One sandbox waits, not three of each language: pages start many servers.
        env = environment(home) | {"BELLJAR_POOL_SIZE": "1", "PAGE_DIR": str(self.directory), "LIB": str(HERE / "lib.sh"),
                                   "FIXTURE": str(HERE / f"pages/{name}.sh")}
        # 3: pieces to run; 4: that one is done. What the pieces start has neither: its end is not the shell's.
        self.process = subprocess.Popen(
            ["bash", "--norc", "-c", f"exec 3<&{pieces} 4>&{done} {pieces}<&- {done}>&-\n{DRIVER}"], cwd=self.cwd, env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(self.directory / "shell.err", "wb"),
            pass_fds=(pieces, done), start_new_session=True)
        for end in (here[0], there[1], pieces, done):
            os.close(end)
        self.to, self.back, self.count, self.slowest = here[1], there[0], 0, (0, "")
        self._done("what is prepared for the page", self.directory / "fixture.out")

    def _done(self, what, output):
        ready, _, _ = select.select([self.back], [], [], LIMIT)
        if ready and os.read(self.back, 64):
            return
        why = f"did not end within {LIMIT:.0f} s" if not ready else "failed"
        printed = output.read_text(errors="replace") if output.exists() else ""
        trouble = (self.directory / "shell.err").read_text(errors="replace")
        raise Failed(f"{what} {why}\n{printed}{trouble}")

    def run(self, text, what=None):
        """Runs a piece of shell and returns what it printed."""
        self.count += 1
        piece = self.directory / f"piece-{self.count}.sh"
        piece.write_text(text + "\n")
        os.write(self.to, f"{piece}\n".encode())
        output = Path(f"{piece}.out")
        began = time.monotonic()
        self._done(what or f"`{text.strip()}`", output)
        self.slowest = max(self.slowest, (time.monotonic() - began, what or text.strip()))
        return output.read_text(errors="replace")

    def save(self, name, text):
        path = self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return shlex.quote(str(path))

    def close(self, well):
        """Ends the page's server, and looks at what is left of the page."""
        try:
            if well:
                self.run("end_page", "ending the page's servers")
        finally:
            os.close(self.to)
            for sign in (signal.SIGTERM, signal.SIGKILL):
                try:
                    self.process.wait(30 if well else 1)
                    break
                except subprocess.TimeoutExpired:
                    os.killpg(self.process.pid, sign)
            self.process.wait()
            os.close(self.back)
            left = others()
            deadline = time.monotonic() + 30 * PATIENCE
            while well and left and time.monotonic() < deadline:
                time.sleep(0.05)
                left = others()
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)
        if well and left:
            raise Failed("left behind: " + ", ".join(left.values()))


def others():
    """Processes besides this one, in a world that is this test's own."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (1, os.getpid()):
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if state not in "ZX":
                found[int(entry.name)] = command or "?"
    return found
