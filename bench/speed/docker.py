"""A Docker daemon of our own, without a network, and an image of almost nothing: programs come from the host, read-only."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import install
from driver import Refused
from install import TEMPLATE
from peers import HERE, PROGRAM, Contender, Lines


class Daemon:
    def __init__(self):
        if os.geteuid() != 0:
            raise Refused("needs root")
        dockerd, self.docker = install.needs("dockerd"), install.needs("docker")
        self.work = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="belljar-bench-"))
        self.process = None
        try:
            self.start(dockerd)
        except BaseException:
            self.close()
            raise

    def start(self, dockerd):
        log = self.work / "log"
        self.process = subprocess.Popen(
            [dockerd, "--data-root", self.work / "data", "--exec-root", self.work / "exec", "-H", f"unix://{self.work}/socket",
             "-p", self.work / "pid", "--bridge=none", "--iptables=false", "--ip-masq=false"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log.open("wb"))
        for _ in range(300):
            if subprocess.run([*self.command(), "info"], capture_output=True).returncode == 0:
                break
            if self.process.poll() is not None:
                raise Refused(f"dockerd does not run here: {log.read_text(errors='replace')[-300:]}")
            time.sleep(0.2)
        root = self.work / "root"
        for name in ("usr", "etc", "tmp", "proc", "sys", "dev", "run"):
            (root / name).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        tar = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
        made = subprocess.run([*self.command(), "import", "-", "belljar-bench"], stdin=tar.stdout, capture_output=True, text=True)
        tar.wait()
        if made.returncode:
            raise Refused(f"no image can be made here: {made.stderr.strip()[-300:]}")

    def command(self):
        return [str(self.docker), "-H", f"unix://{self.work}/socket"]

    def mounts(self):
        prefix = Path(os.path.realpath(TEMPLATE.python)).parents[1]
        binds = {"/usr", str(prefix), str(TEMPLATE.python.parents[1]), str(TEMPLATE.site), str(HERE)}
        return [part for bind in sorted(binds) for part in ("-v", f"{bind}:{bind}:ro")]

    def run(self, *options):
        env = ["-e", f"PYTHONPATH={TEMPLATE.site}", "-e", "OPENBLAS_NUM_THREADS=1", "-e", "MPLCONFIGDIR=/tmp", "-e", "MPLBACKEND=agg"]
        return [*self.command(), "run", "--network", "none", *env, *self.mounts(), *options]

    def close(self):
        if self.process:
            subprocess.run([*self.command(), "ps", "-aq"], capture_output=True)
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for _ in range(50):
            shutil.rmtree(self.work, ignore_errors=True)
            if not self.work.exists():
                break
            time.sleep(0.2)


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
