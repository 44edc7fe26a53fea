"""A container engine of one's own for scripts in Python, as dockerd.sh starts it for those in the shell."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# It ends with whoever started it, however that ends: standard input is closed then.
SCRIPT = '. tests/dockerd.sh "$1"; shift; "$@" || skip "it does not run here"; echo "$work"; read -r _ || true'


class NoEngine(Exception):
    """There is none on this machine, and the reason was printed."""


class Engine:
    START, SOCKET = "start_dockerd", "socket"

    def __init__(self, what, *options):
        """`what` is said to be skipped where there is no engine; the options are dockerd's."""
        self.process = subprocess.Popen(["bash", "-euc", SCRIPT, "dockerd", what, self.START, *options], cwd=ROOT,
                                        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.work = Path(self.process.stdout.readline().strip())
        self.host = f"unix://{self.work}/{self.SOCKET}"
        if not self.work.name:
            self.close()
            raise NoEngine(what)

    def command(self, *arguments):
        return ["docker", "-H", self.host, *map(str, arguments)]

    def run(self, *arguments, check=True, **how):
        return subprocess.run(self.command(*arguments), capture_output=True, check=check, **how)

    def bare_image(self, name):
        """An image of almost nothing: programs come from the host's /usr, which has to be mounted."""
        root = self.work / "root"
        for directory in ("usr", "etc", "tmp", "proc", "sys", "dev", "run", "var/tmp"):
            (root / directory).mkdir(parents=True)
        for directory in ("bin", "sbin", "lib", "lib64"):
            os.symlink(f"usr/{directory}", root / directory)
        tar = subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout
        self.run("import", "-", name, input=tar)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


class Podman(Engine):
    START, SOCKET = "start_podman", "podman-socket"
