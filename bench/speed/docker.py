"""A Docker daemon of our own, without a network, and an image of almost nothing: programs come from the host, read-only."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from driver import Refused
from install import TEMPLATE, needs
from peers import FONTS, HERE, PROGRAM, Contender, Lines

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from dockerd import Engine, NoEngine  # noqa: E402


@contextlib.contextmanager
def overheard():
    """A file of what is said on standard error meanwhile, by other programs too."""
    with tempfile.TemporaryFile() as said:
        before = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(before, 2)
            os.close(before)


class Daemon:
    def __init__(self):
        for program in ("dockerd", "docker"):
            needs(program)
        with overheard() as said:
            try:
                self.engine = Engine("FIGURES OF CONTAINERS")
            except NoEngine:
                said.seek(0)
                raise Refused(said.read().decode(errors="replace")[-600:]) from None
        try:
            self.engine.bare_image("belljar-bench")
        except subprocess.CalledProcessError as error:
            self.close()
            raise Refused(f"no image can be made here: {error.stderr.decode().strip()[-300:]}") from None

    def command(self):
        return self.engine.command()

    def mounts(self):
        prefix = Path(os.path.realpath(TEMPLATE.python)).parents[1]
        binds = {"/usr", str(prefix), str(TEMPLATE.python.parents[1]), str(TEMPLATE.site), str(HERE)}
        FONTS.mkdir(parents=True, exist_ok=True)
        return [part for bind in sorted(binds) for part in ("-v", f"{bind}:{bind}:ro")] + ["-v", f"{FONTS}:{FONTS}"]

    def run(self, *options):
        env = ["-e", f"PYTHONPATH={TEMPLATE.site}", "-e", "OPENBLAS_NUM_THREADS=1", "-e", f"MPLCONFIGDIR={FONTS}", "-e", "MPLBACKEND=agg"]
        return [*self.command(), "run", "--network", "none", *env, *self.mounts(), *options]

    def close(self):
        self.engine.close()


class Container(Lines):
    """`repl.py` in a container, and programs in fresh ones."""

    def __init__(self, driver, daemon):
        super().__init__(driver, "docker run", daemon.run("-i", "--rm", "belljar-bench"))

    def pids(self):
        return []  # what runs in a container is no child of `docker run`


class Exec(Contender):
    """`docker exec` into a container that is there already: no state between programs."""

    name, stateful = "docker exec", False

    def __init__(self, daemon):
        self.daemon = daemon
        started = subprocess.run([*daemon.run("-d", "--rm", "belljar-bench", "sleep", "3600")], capture_output=True, text=True)
        if started.returncode:
            raise Refused(f"no container runs here: {started.stderr.strip()[-300:]}")
        self.container = started.stdout.strip()

    def once(self, count):
        times = []
        for _ in range(count):
            began = time.perf_counter()
            done = subprocess.run([*self.daemon.command(), "exec", self.container, TEMPLATE.python, "-c", PROGRAM], capture_output=True, text=True)
            times.append(time.perf_counter() - began)
            if done.stdout.strip() != "2":
                raise Refused(f"docker exec: {done.stderr.strip()[-300:]}")
        return times

    def close(self):
        subprocess.run([*self.daemon.command(), "kill", self.container], capture_output=True)
