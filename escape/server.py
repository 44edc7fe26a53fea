"""A server to attack: `belljar mcp` of root's, of an ordinary user's, with a container engine, or with a browser."""

import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import host as outside
import naive_proxy
from host import Refusal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.append(str(ROOT / "tests"))

from dockerd import Engine, NoEngine  # noqa: E402, F401

BELLJAR = Path(os.environ.get("BELLJAR") or ROOT / "target/release/belljar").resolve()
SERVERS = itertools.count(1)
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "escape", "version": "1"},
}


def templates():
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(os.environ.get("BELLJAR_HOME") or os.path.join(data, "belljar")) / "templates"


# Enters cgroups, then becomes an ordinary user.
BECOME = """while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 1; shift; done; shift; id=$1; shift
exec setpriv --reuid "$id" --regid "$id" --clear-groups "$@\""""


# Names that probes of the network ask for, on this machine alone and for this server alone.
WITH_NAMES = ["unshare", "-m", "sh", "-euc", 'mount --bind "$1" /etc/hosts; shift; exec "$@"', "sh"]


def delegated():
    """Cgroups that are an ordinary user's, as the hardening guide wants them: a user's whole session manager would
    make them with `Delegate=yes`. Empty where this machine has only the newer kind, which that alone can hand over."""
    made, number = [], next(SERVERS)
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not {"memory", "cpu", "pids", "cpuacct"} & set(controllers.split(",")):
            continue
        directory = Path("/sys/fs/cgroup", controllers, path.lstrip("/"), f"belljar-escape-{os.getpid()}-{number}")
        directory.mkdir()
        for owned in (directory, directory / "cgroup.procs", directory / "tasks"):
            os.chown(owned, outside.NOBODY, outside.NOBODY)
        made.append(str(directory))
    return made


@functools.cache
def ordinary_home():
    made = subprocess.run([ROOT / "scripts/ordinary-home.sh", BELLJAR], stdout=subprocess.PIPE, text=True)
    if made.returncode:
        raise SystemExit(made.returncode)
    return made.stdout.strip()


class NotHere(Exception):
    """This machine has no such server."""


class Server:
    """`belljar mcp` with a home of its own, in a working directory; or with less than it needs."""

    def __init__(self, host, user, directory="/", lacking=(), settings=()):
        self.temporary, self.cgroups, program, path = None, [], [BELLJAR], os.environ["PATH"]
        self.engine = Engine("THE ESCAPES FROM CONTAINERS") if user == "docker" else None
        if not user.startswith("user"):
            self.temporary = tempfile.TemporaryDirectory(prefix="belljar-escape-root-")
            self.home = self.temporary.name
            Path(self.home, "templates").mkdir()
            for template in templates().iterdir():
                # What a server remembers of a browser, this one shall not write down for others.
                if template.name != "browser.json":
                    Path(self.home, "templates", template.name).symlink_to(template)
        else:
            self.home = ordinary_home()
            path = "/usr/local/bin:/usr/bin:/bin"
            if user == "user":
                self.cgroups = delegated()
                if not self.cgroups:
                    raise NotHere("THE ESCAPES OF AN ORDINARY USER WITH CGROUPS WERE SKIPPED: only a session manager can hand these over")
            program = ["sh", "-c", BECOME, "sh", *self.cgroups, "--", str(outside.NOBODY), f"{self.home}/bin/belljar"]
        limits = {"LIMITS_MEMORY": f"{outside.MEMORY}b", "LIMITS_WORKSPACE": f"{outside.WORKSPACE}b",
                  "LIMITS_TMP": f"{outside.WORKSPACE}b", "LIMITS_PROCESSES": outside.PROCESSES,
                  "FLAVORS_SMALL": f"2:{outside.MEMORY}b", "FLAVORS_MEDIUM": f"2:{outside.MEMORY}b"}
        environment = {f"BELLJAR_{name}": str(value) for name, value in limits.items()} | dict(settings)
        environment |= {"PATH": path, "HOME": self.home, "BELLJAR_HOME": self.home,
                        "BELLJAR_TOOLSETS": "contexts,sessions,sandbox,network", "API_KEY": host.facts["secret"],
                        "BELLJAR_VOLUMES": f"suite={host.suite},offered={host.shared},project={host.project}:rw",
                        "BELLJAR_POOL_SIZE": "1", "BELLJAR_NETWORK_MAX": "open", "BELLJAR_NETWORK_PRIVATE": ",".join(
                            f"{name}:{host.facts['site_port']}" for name in naive_proxy.ADDRESSES)}
        if directory != "/":
            # It would hide what a file in that directory says.
            del environment["BELLJAR_TOOLSETS"]
        if user == "browser":
            environment |= {"BELLJAR_BROWSER": host.browser, "BELLJAR_TOOLSETS": "contexts,sessions,sandbox,browser"}
        if self.engine:
            environment |= {"BELLJAR_BACKEND": "docker", "BELLJAR_DOCKER_HOST": self.engine.host}
        self.log = tempfile.TemporaryFile(dir=host.directory)
        before = lacking or [*WITH_NAMES, host.hosts]
        self.process = subprocess.Popen([*before, *program, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.log, cwd=directory, env=environment, bufsize=0)
        self.ids = itertools.count(1)

    def request(self, method, params):
        number = next(self.ids)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": META}}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        while line := self.process.stdout.readline():
            answer = json.loads(line)
            if answer.get("id") == number:
                return answer
        self.log.seek(0)
        raise SystemExit(f"the server ended:\n{self.log.read().decode(errors='replace')}")

    def call(self, tool, **arguments):
        """A tool's result as text, and as data."""
        answer = self.request("tools/call", {"name": tool, "arguments": arguments})
        if "error" in answer:
            raise Refusal(answer["error"]["message"])
        result = answer["result"]
        text = " ".join(part.get("text", "") for part in result["content"])
        if result.get("isError") and "structuredContent" not in result:
            try:
                raise Refusal(json.loads(text)["code"], text)
            except (ValueError, KeyError):
                raise Refusal(text) from None
        return text, result.get("structuredContent", {})

    def networked(self, facts, network):
        """A sandbox that may reach one host, although the operator would allow those of the secret too: nothing but its
        own list keeps it from them. Or one without a list: nothing but the check of addresses does."""
        sandbox = self.call("sandbox_create")[1]["sandbox_id"]
        allow = {"allow": [f"{facts['allowed']}:{facts['site_port']}"]} if network == "allowlist" else {}
        self.call("sandbox_network", sandbox_id=sandbox, network=network, **allow)
        return sandbox

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()
        if self.engine:
            self.engine.close()
        if self.temporary:
            self.temporary.cleanup()
        for top in self.cgroups:
            # A server that could make no sandbox may leave the cgroup that was to hold them.
            for directory, _, _ in os.walk(top, topdown=False):
                os.rmdir(directory)
