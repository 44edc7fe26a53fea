"""Puts the peers into a cache below target/, each Python one into a virtual environment of its own.

All of them run on the interpreter of Belljar's own Python template and find its libraries, so that the same numpy, pandas and
matplotlib are loaded everywhere. What cannot be installed is left out, and the reason is kept for the report.
"""

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from driver import CACHE, Refused

PACKAGES = {
    "jupyter": ["ipykernel==7.4.0", "jupyter_client==8.10.0", "jupyter_kernel_gateway==3.0.1", "websocket-client==1.9.2"],
    "jupyter-mcp": ["jupyter-mcp-server==2.2.4", "jupyterlab==4.6.6", "jupyter-collaboration==5.0.4", "ipykernel==7.4.0"],
    "sdk": ["mcp==2.3.0"],
    "run-python": ["mcp-run-python==0.0.22", "deno==2.9.8"],
}
NPM = {
    "npm": ["@anthropic-ai/sandbox-runtime@0.0.83", "deno@2.9.6"],
    "ijavascript": ["ijavascript@5.2.1"],  # apart, since it compiles something, which may fail
}
PATIENCE = 900


@dataclasses.dataclass
class Template:
    python: Path
    site: Path


def find_template():
    home = os.environ.get("BELLJAR_HOME")
    if not home:
        home = os.path.join(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "belljar")
    made = sorted(Path(home, "templates").glob("python-*"), key=lambda path: path.stat().st_mtime)
    if not made:
        sys.exit(f"there is no Python template below {home}: run `belljar setup` first")
    manifest = json.loads((made[-1] / "manifest.json").read_text())
    return Template(Path(manifest["executable"]), made[-1] / "site")


TEMPLATE = find_template()
missing = {}  # name -> why it is not here


def once(directory, wanted, work):
    """Does the work unless it was done for just this."""
    stamp = directory / "stamp"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    print(f"installing {wanted} below target/{directory.relative_to(CACHE.parent)}", file=sys.stderr)
    work()
    stamp.write_text(wanted)


def run(*command, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=PATIENCE, **more)
    if done.returncode:
        raise Refused((done.stderr or done.stdout).strip()[-400:] or f"{command[0]} failed")


def python(name):
    """The interpreter of a virtual environment, which is made when it is asked for first."""
    directory = CACHE / name
    program = directory / "bin/python"

    def make():
        run(TEMPLATE.python, "-m", "venv", directory)
        run(program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES[name])
        site = next(directory.glob("lib/python3*/site-packages"))
        # After its own packages, so that these come first.
        (site / "zz-belljar-template.pth").write_text(f"{TEMPLATE.site}\n")

    once(directory, " ".join(PACKAGES[name]), make)
    return program


def versions(name):
    """What pip and npm made of the names."""
    names = [package.split("==")[0] for package in PACKAGES[name]]
    script = "import importlib.metadata as m, sys\nfor n in sys.argv[1:]: print(n, m.version(n))"
    done = subprocess.run([str(python(name)), "-c", script, *names], capture_output=True, text=True)
    return done.stdout.strip().split("\n")


def npm(program, name="npm", **settings):
    """A program of an npm package."""
    directory, packages = CACHE / name, NPM[name]
    command = ["npm", "install", "--prefix", directory, "--no-audit", "--no-fund", "--loglevel=error", *packages]
    once(directory, " ".join(packages), lambda: run(*command, env={**os.environ, **settings}))
    path = directory / "node_modules/.bin" / program
    if not path.exists():
        raise Refused(f"npm did not bring {program}")
    return path


def ijavascript():
    """IJavascript's kernel. Its binding to ZeroMQ comes compiled for Node up to 18, and for a newer one as source, which would
    download ZeroMQ's too; the system's is asked for instead."""
    header = Path("/usr/include/zmq.h")
    if not header.exists():
        apt("libzmq3-dev")
    if not header.exists():
        raise Refused("there is no zmq.h: apt-get install libzmq3-dev")
    return npm("ijskernel", "ijavascript", npm_config_zmq_external="true")


def needs(program):
    search = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    path = shutil.which(program, path=search)
    if path:
        return path
    package = {"bwrap": "bubblewrap", "dockerd": "docker.io", "docker": "docker.io", "rg": "ripgrep"}.get(program, program)
    apt(package)
    path = shutil.which(program, path=search)
    if path:
        return path
    raise Refused(f"there is no {program}: apt-get install {package}")


def apt(package):
    """Installs a Debian package if that can be done."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        get = ["apt-get", "-y", "-qq"]
        done = subprocess.run([*get, "install", "--no-install-recommends", package], capture_output=True)
        if done.returncode:
            subprocess.run([*get, "update"], capture_output=True)
            subprocess.run([*get, "install", "--no-install-recommends", package], capture_output=True)


def kernelspec(name, arguments):
    """Tells Jupyter of a kernel that is no Python package."""
    directory = CACHE / "kernels/kernels" / name
    directory.mkdir(parents=True, exist_ok=True)
    spec = {"argv": [str(part) for part in arguments], "display_name": name, "language": name}
    (directory / "kernel.json").write_text(json.dumps(spec))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for_port(port, process, log):
    for _ in range(1200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise Refused(f"nothing listens: {log.read_text(errors='replace').strip()[-400:]}")
