"""The host's side of the suite: secrets to be stolen, services to be reached, and canaries that succeed outside."""

import ctypes
import fcntl
import glob
import json
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from pathlib import Path

import naive_proxy

HERE = Path(__file__).resolve().parent
MEMORY, WORKSPACE, PROCESSES = 256 << 20, 64 << 20, 64
NOBODY = 65534
NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")


class Host:
    """Everything that a sandbox must not reach, where anybody on the host can."""

    def __enter__(self):
        # Open to everybody: no file permission shall be what stops a probe.
        os.umask(0o022)
        self.directory = tempfile.mkdtemp(prefix="belljar-escape-")
        os.chmod(self.directory, 0o755)
        self.shared = os.path.join(self.directory, "shared")
        self.suite = os.path.join(self.directory, "suite")
        self.project = os.path.join(self.directory, "project")
        os.mkdir(self.project)
        os.chmod(self.project, 0o777)
        # A server refuses to let sandboxes write where it is root whose files they would become.
        os.chown(self.project, NOBODY, NOBODY)
        self.browser = os.path.join(self.directory, "browser", "chromium")
        os.mkdir(os.path.dirname(self.browser))
        shutil.copy(HERE / "browser.py", self.browser)
        # By this one knows a Chromium.
        Path(self.browser).with_name("icudtl.dat").touch()
        shutil.copytree(HERE, self.suite, ignore=shutil.ignore_patterns("__pycache__"))
        marker, secret = f"{secrets.randbelow(10**6)}.25", secrets.token_hex(16)
        self.kept, self.stopped = [], threading.Event()
        self.process = subprocess.Popen(["sleep", f"7{marker}"])
        (site, proxy, socks), self.sites = naive_proxy.start(secret)
        self.hosts = f"{self.directory}/hosts"
        Path(self.hosts).write_text(naive_proxy.HOSTS)
        tcp, tcp6, anywhere = self.listen("127.0.0.1"), self.listen("::1"), self.listen("0.0.0.0")
        self.facts = {
            "secret": secret, "secret_path": f"{self.directory}/secret", "host_directory": self.directory,
            "socket_path": f"{self.directory}/socket", "abstract": os.path.basename(self.directory),
            "host_pid": self.process.pid, "marker": f"7{marker}", "daemon": f"8{marker}",
            "host_name": os.uname().nodename, "host_address": address(), "tcp_port": tcp, "tcp6_port": tcp6,
            "any_port": anywhere, "udp_port": self.answer("127.0.0.1", b"pong"),
            "dns_port": self.answer("0.0.0.0", secret.encode()), "allowed": naive_proxy.ALLOWED, "site_port": site,
            "proxy_port": proxy, "socks_port": socks, "shm_key": 0x42454C4A,
            "dev_shm": os.path.basename(self.directory), "memory": MEMORY, "workspace": WORKSPACE, "shm": 64 << 20,
            "inodes": WORKSPACE // 8192, "processes": PROCESSES, "locked": "/usr/lib/os-release",
            "opened": "/usr/bin/sha384sum", "project": self.project, "project_inside": self.project,
            "namespaces": {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES},
        }
        Path(self.facts["secret_path"]).write_text(secret)
        Path("/dev/shm", self.facts["dev_shm"]).write_text(secret)
        self.bind(self.facts["socket_path"])
        self.bind("\0" + self.facts["abstract"])
        self.bind("\0" + self.facts["abstract"] + "-datagram", socket.SOCK_DGRAM)
        self.share(secret)
        self.libc = ctypes.CDLL(None)
        self.segment = self.libc.shmget(self.facts["shm_key"], 4096, 0o1666)
        self.kept.append(open(self.facts["locked"]))
        fcntl.flock(self.kept[-1], fcntl.LOCK_EX)
        threading.Thread(target=self.open_often, daemon=True).start()
        return self

    def empty_project(self):
        """The directory that sandboxes may write to, and that somebody on the host works in. It stays the same one: a
        sandbox that is kept ready may have it already."""
        for entry in os.scandir(self.project):
            shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)

    def share(self, secret):
        """A volume with everything in it that a volume should not have."""
        os.mkdir(self.shared)
        os.symlink(f"{self.directory}/secret", f"{self.shared}/link")
        self.bind(f"{self.shared}/socket")
        self.make_fifo(f"{self.shared}/fifo")
        os.mknod(f"{self.shared}/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.chmod(f"{self.shared}/null", 0o666)
        source = f"{self.directory}/id.c"
        Path(source).write_text('#include <stdio.h>\n#include <unistd.h>\nint main(void) { printf("%d\\n", geteuid()); }\n')
        subprocess.run(["cc", "-static", "-o", f"{self.shared}/id", source], check=True)
        os.chmod(f"{self.shared}/id", 0o4755)

    def listen(self, where):
        try:
            ours = socket.create_server((where, 0), family=socket.AF_INET6 if ":" in where else socket.AF_INET)
        except OSError:
            return 9
        self.kept.append(ours)
        return ours.getsockname()[1]

    def answer(self, where, text):
        ours = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        ours.bind((where, 0))
        ours.settimeout(1)
        self.kept.append(ours)

        def serve():
            while not self.stopped.is_set():
                try:
                    ours.sendto(text, ours.recvfrom(100)[1])
                except OSError:
                    continue
        threading.Thread(target=serve, daemon=True).start()
        return ours.getsockname()[1]

    def bind(self, name, kind=socket.SOCK_STREAM):
        ours = socket.socket(socket.AF_UNIX, kind)
        ours.bind(name)
        if not name.startswith("\0"):
            os.chmod(name, 0o777)
        if kind == socket.SOCK_STREAM:
            ours.listen(100)
        self.kept.append(ours)

    def open_often(self):
        while not self.stopped.wait(0.02):
            os.close(os.open(self.facts["opened"], os.O_RDONLY))
            for wanted in glob.glob("wanted-*", root_dir=self.project):
                self.put_later(wanted)

    def put_later(self, name):
        """What a probe asks for, into a volume that its sandbox has already."""
        for kind, made in (("socket", self.bind), ("fifo", self.make_fifo)):
            path = f"{self.shared}/{name}.{kind}"
            if not os.path.exists(path):
                made(path + "-new")
                os.rename(path + "-new", path)

    def make_fifo(self, path):
        os.mkfifo(path)
        os.chmod(path, 0o666)
        # Somebody who listens.
        self.kept.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))

    def order(self, name, probes, facts, neighbours=()):
        """What inside.py shall do, as a file in the suite's own directory."""
        path = os.path.join(self.suite, f"{name}.json")
        Path(path).write_text(json.dumps({"probes": probes, "facts": facts, "neighbours": list(neighbours)}))
        return path

    def __exit__(self, *_):
        self.stopped.set()
        for server in self.sites:
            server.shutdown()
            server.server_close()
        self.process.kill()
        self.process.wait()
        self.libc.shmctl(self.segment, 0, None)
        os.unlink(f"/dev/shm/{self.facts['dev_shm']}")
        shutil.rmtree(self.directory)


def address():
    """The address of this machine in its network, or its loopback if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        try:
            ours.connect(("192.0.2.1", 9))
            return ours.getsockname()[0]
        except OSError:
            return "127.0.0.1"


# Enforcement that switches itself off.
UNSHARED_IF_POSSIBLE = 'unshare -Urn true && exec unshare -Urn "$@" || exec "$@"'


class Naive:
    """What tools look like that somebody wrote in an afternoon, for the canaries of tools."""

    def __init__(self, directory, without=()):
        self.directory, self.without = directory, without

    def __call__(self, tool, path="", code="", content=""):
        path = os.path.join(self.directory, path.split("\0")[0])
        if tool == "download_file":
            return Path(path).read_text(errors="replace")
        if tool == "upload_file":
            return str(Path(path).write_text(content))
        if tool == "list_files":
            return " ".join(os.listdir(path))
        if tool == "run_code":
            command = [*self.without, "sh", "-c", UNSHARED_IF_POSSIBLE, "sh", sys.executable, "-c", code]
            command = command if self.without else [sys.executable, "-c", code]
            return subprocess.run(command, cwd=self.directory, capture_output=True, text=True).stdout
        return act_upon_everything(path) if tool == "work_in" else ""


def act_upon_everything(directory):
    """Works in a directory and trusts all that it finds there. Returns the settings."""
    def found(path, pick):
        try:
            return pick(json.loads(Path(directory, path).read_text()))
        except OSError:
            return []
    commands = [["sh", os.path.join(directory, path)] for path in (".git/hooks/post-checkout", ".envrc")]
    commands += found(".mcp.json", lambda it: [[s["command"], *s["args"]] for s in it["mcpServers"].values()])
    commands += [["sh", "-c", line] for line in (
        *found(".vscode/tasks.json", lambda it: [task["command"] for task in it["tasks"]]),
        *found(".claude/settings.json", lambda it: [it["hooks"]["SessionStart"][0]["hooks"][0]["command"]]),
        *found("package.json", lambda it: it["scripts"].values()))]
    commands.append([sys.executable, "-c", ""])
    for command in commands:
        subprocess.run(command, cwd=directory, env={**os.environ, "PYTHONPATH": directory}, stderr=subprocess.DEVNULL)
    settings = Path(directory, "belljar.toml")
    return str(tomllib.loads(settings.read_text())) if settings.exists() else ""


def canaries(host, probes):
    """Every probe outside, where it must succeed: probe → what it achieved, or None and how it was answered."""
    with tempfile.TemporaryDirectory(prefix="belljar-escape-canary-") as work:
        facts = {**host.facts, "canary": True, "work": work, "tmp": work, "read_only": host.shared, "templates": host.directory, "patience": 1,
                 "own_paths": ["/proc", "/dev"]}
        found = {}
        inside = os.path.join(host.suite, "inside.py")
        neighbours = [name for name, probe in probes.items() if hasattr(probe, "neighbour")]
        beside = subprocess.Popen([sys.executable, inside, "neighbour", host.order("canary-beside", [], facts, neighbours)],
                                  stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            assert beside.stdout.readline() == "ready\n"
            ordinary = {name: probe for name, probe in probes.items() if not hasattr(probe, "TOOL")}
            apart = [name for name, probe in ordinary.items() if getattr(probe, "OUTSIDE", "") == "namespace"]
            here = [name for name in ordinary if name not in apart]
            for names, prefix in ((here, []), (apart, ["unshare", "-m", "-n", "-u", "-i", "-p", "-f", "--mount-proc"])):
                order = host.order("canary", names, facts)
                ran = subprocess.run([*prefix, sys.executable, inside, "run", order], stdout=subprocess.PIPE, text=True,
                                     cwd=work, check=True)
                found.update({result["probe"]: result for result in map(json.loads, ran.stdout.splitlines())})
        finally:
            os.killpg(beside.pid, 9)
            beside.wait()
            clean_up()
            host.empty_project()
        for name, probe in probes.items():
            if hasattr(probe, "TOOL"):
                with tempfile.TemporaryDirectory(prefix="belljar-escape-naive-") as naive:
                    found[name] = through(probe, Naive(naive, without(probe)), facts)
                    found[name]["probe"] = name
                host.empty_project()
        for left in ("written", "executed"):
            Path(host.directory, left).unlink(missing_ok=True)
        for number in filter(str.isdigit, os.listdir("/proc")):
            try:
                if Path("/proc", number, "cmdline").read_bytes() == f"sleep\0{host.facts['daemon']}\0".encode():
                    os.kill(int(number), 9)
            except OSError:
                continue
        return found


def without(probe):
    """The beginning of a command line that takes something away from the machine, if the probe wants that."""
    return [sys.executable, str(HERE / "without.py"), probe.WITHOUT] if hasattr(probe, "WITHOUT") else []


def through(probe, call, facts):
    began = time.monotonic()
    try:
        escaped, answer = probe.attempt(call, facts), "refused or harmless"
    except Refusal as refused:
        escaped, answer = None, str(refused)
        # Refused for another reason it would prove nothing, and whoever starts such a server has to learn what is missing, and who
        # tells how to get it.
        if hasattr(probe, "WITHOUT") and not (probe.SAYS in refused.said and "belljar doctor" in refused.said):
            answer = f"BROKEN: refused, and does not say that it lacks {probe.WITHOUT}, or how to get it: {refused.said}"
    return {"escaped": escaped, "answer": "" if escaped else answer, "seconds": time.monotonic() - began}


class Refusal(Exception):
    """A tool said no: in a word, and in full."""

    def __init__(self, word, said=""):
        super().__init__(word)
        self.said = said or word


def clean_up():
    """What neighbours of canaries left on the host."""
    for path in ("/dev/shm/belljar-escape-neighbour", "/tmp/belljar-escape-neighbour"):
        Path(path).unlink(missing_ok=True)
    libc = ctypes.CDLL(None)
    libc.shmctl(libc.shmget(0x42454C4C, 0, 0), 0, None)
    libc.msgctl(libc.msgget(0x42454C4D, 0), 0, None)
