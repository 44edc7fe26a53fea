#!/usr/bin/env python3
"""The escape suite: every known way out of a sandbox, tried in real ones.

    escape/run.py [--docs] [--only TEXT] [--servers root,user,docker]

Each file in probes/ is one technique. It is tried from an interpreter, from a command and from a process in the
background, in sandboxes of root's server, of an ordinary user's and of a container engine's; and outside of any sandbox,
where it must succeed, so that none is blocked by being broken. Fails if one gets out that weaknesses.toml does not name.
Needs root. The engine is started for this and ended; where it cannot run, that is said and the rest goes on.

BELLJAR names the binary (default: target/release/belljar). Templates are those of BELLJAR_HOME, by default this
machine's own.
"""

import argparse
import functools
import importlib.util
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "tests")]

import dockerd  # noqa: E402
import host as outside  # noqa: E402
import naive_proxy  # noqa: E402
import table  # noqa: E402
from host import Host, Refusal, canaries, through, without  # noqa: E402

BELLJAR = Path(os.environ.get("BELLJAR") or ROOT / "target/release/belljar").resolve()
PAGE = ROOT / "docs/security.md"
EVERY_SERVER = "root,user,docker"
SERVERS = itertools.count(1)
WAYS = ("interpreter", "command", "background")
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "escape", "version": "1"},
}


def load_probes(only):
    probes = {}
    for path in sorted((HERE / "probes").glob("*.py")):
        if only in path.stem:
            spec = importlib.util.spec_from_file_location(f"probe_{path.stem}", path)
            probes[path.stem] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(probes[path.stem])
    # What uses up a sandbox comes last.
    return dict(sorted(probes.items(), key=lambda item: item[1].CLASS == "resources"))


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


class Server:
    """`belljar mcp` with a home of its own, in a working directory; or with less than it needs."""

    def __init__(self, host, user, directory="/", lacking=(), settings=()):
        self.temporary, self.cgroups, program, path = None, [], [BELLJAR], os.environ["PATH"]
        self.engine = dockerd.Engine("THE ESCAPES FROM CONTAINERS") if user == "docker" else None
        if user != "user":
            self.temporary = tempfile.TemporaryDirectory(prefix="belljar-escape-root-")
            self.home = self.temporary.name
            Path(self.home, "templates").symlink_to(templates())
        else:
            self.home = ordinary_home()
            path = "/usr/local/bin:/usr/bin:/bin"
            self.cgroups = delegated()
            program = ["sh", "-c", BECOME, "sh", *self.cgroups, "--", str(outside.NOBODY), f"{self.home}/bin/belljar"]
        limits = {"LIMITS_MEMORY": f"{outside.MEMORY}b", "LIMITS_WORKSPACE": f"{outside.WORKSPACE}b",
                  "LIMITS_TMP": f"{outside.WORKSPACE}b", "LIMITS_PROCESSES": outside.PROCESSES,
                  "FLAVORS_SMALL": f"2:{outside.MEMORY}b", "FLAVORS_MEDIUM": f"2:{outside.MEMORY}b"}
        environment = {f"BELLJAR_{name}": str(value) for name, value in limits.items()} | dict(settings)
        environment |= {"PATH": path, "HOME": self.home, "BELLJAR_HOME": self.home,
                        "BELLJAR_TOOLSETS": "contexts,sessions,sandbox,network", "API_KEY": host.facts["secret"],
                        "BELLJAR_VOLUMES": f"suite={host.suite},offered={host.shared},project={host.project}:rw",
                        "BELLJAR_POOL_SIZE": "1", "BELLJAR_NETWORK_MAX": "allowlist", "BELLJAR_NETWORK_PRIVATE": ",".join(
                            f"{name}:{host.facts['site_port']}" for name in naive_proxy.ADDRESSES)}
        if directory != "/":
            # It would hide what a file in that directory says.
            del environment["BELLJAR_TOOLSETS"]
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

    def networked(self, facts):
        """A sandbox that may reach one host, although the operator would allow those of the secret too: nothing but its
        own list keeps it from them."""
        sandbox = self.call("sandbox_create")[1]["sandbox_id"]
        allow = [f"{facts['allowed']}:{facts['site_port']}"]
        self.call("sandbox_network", sandbox_id=sandbox, network="allowlist", allow=allow)
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


INSIDE = "/volumes/suite/inside.py"


def lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def from_interpreter(server, order, sandbox):
    context = sandbox or server.call("create_context", name="escape")[1]["context_id"]
    # The same process, not a child: a way in of its own, from the zygote.
    code = f"import runpy, sys; sys.argv = ['inside', 'run', {order!r}]; runpy.run_path({INSIDE!r}, run_name='__main__')"
    return lines(server.call("run_code", context_id=context, code=code, timeout=600)[1]["stdout"])


def from_command(server, order, sandbox):
    named = {"session_id": sandbox} if sandbox else {}
    result = server.call("execute_command", command="python3", args=[INSIDE, "run", order], timeout=600, **named)[1]
    return lines(result["stdout"])


def from_background(server, order, sandbox):
    done, named = "/workspace/escape-results", {"session_id": sandbox} if sandbox else {}
    arguments = [INSIDE, "run", order, done]
    started = server.call("execute_command", command="python3", args=arguments, background=True, **named)[1]
    session, process = started["session_id"], started["process_id"]
    while started["status"] == "running":
        started = server.call("execute_command", session_id=session, process_id=process, wait=10)[1]
    return lines(server.call("execute_command", session_id=session, command="cat", args=[done])[1]["stdout"])


def work_in(host, user, directory):
    """What somebody does next in a directory that a sandbox wrote to: a server is started there, asked for its tools and
    used. Returns the tools, which settings would change."""
    # On the host a server of containers is like any other.
    server = Server(host, "root" if user == "docker" else user, directory)
    try:
        context = server.call("create_context", name="next")[1]["context_id"]
        server.call("run_code", context_id=context, code="import json; print(json.dumps(1))")
        server.call("list_files", context_id=context, path="/volumes/project")
        return json.dumps([tool["name"] for tool in server.request("tools/list", {})["result"]["tools"]])
    finally:
        server.close()


def through_tools(host, user, server, probes, facts):
    """Each with a context of its own."""
    found = []
    for name, probe in probes.items():
        context = server.call("create_context", name=name)[1]["context_id"]

        def call(tool, **arguments):
            if tool == "work_in":
                return work_in(host, user, arguments["path"])
            return server.call(tool, context_id=context, **arguments)[0]
        found.append({"probe": name, **through(probe, call, facts)})
        for left in ("written", "executed"):
            Path(facts["host_directory"], left).unlink(missing_ok=True)
        host.empty_project()
    return found


def through_weakened(host, user, probes, facts):
    """Each with a server of its own, which lacks something."""
    for name, probe in probes.items():
        if user == "docker":
            yield {"probe": name, "escaped": None, "answer": "the engine isolates"}
            continue
        server = Server(host, user, lacking=without(probe), settings=getattr(probe, "SETTINGS", {}))
        # One that does not answer got nowhere either, but it has to be ended.
        limit = threading.Timer(60, server.process.kill)
        limit.start()

        def call(tool, **arguments):
            try:
                context = server.call("create_context", name=name)[1]["context_id"]
                return server.call(tool, context_id=context, **arguments)[0]
            except (SystemExit, BrokenPipeError) as ended:
                raise Refusal("the server ended", str(ended)) from None
        try:
            yield {"probe": name, **through(probe, call, facts)}
        finally:
            limit.cancel()
            server.close()


def attack(host, user, probes):
    """probe → way → result, in sandboxes of one server."""
    facts = {**host.facts, "work": "/workspace", "tmp": "/tmp", "read_only": "/volumes/offered", "patience": 60,
             "templates": "/templates/", "proxy_port": 3128, "socks_port": 1080,
             "project_inside": "/volumes/project", "own_paths": [
                 "/proc", "/dev", "/workspace", "/outputs", "/tmp", "/memfd", "/volumes/suite", "/volumes/project"]}
    inner = {name: probe for name, probe in probes.items() if not hasattr(probe, "TOOL")}
    weakened = {name: probe for name, probe in probes.items() if hasattr(probe, "WITHOUT")}
    tools = {name: probe for name, probe in probes.items() if hasattr(probe, "TOOL") and name not in weakened}
    neighbours = [name for name, probe in inner.items() if hasattr(probe, "neighbour")]
    host.order(f"{user}-beside", [], facts, neighbours)
    networked = [name for name, probe in inner.items() if hasattr(probe, "NETWORK")]
    host.order(user, [name for name in inner if name not in networked], facts)
    host.order(f"{user}-networked", networked, facts)
    order, beside, outward = (f"/volumes/suite/{user}{what}.json" for what in ("", "-beside", "-networked"))
    server, found = Server(host, user), {name: {} for name in probes}
    try:
        waiting = server.call("execute_command", command="python3", args=[INSIDE, "neighbour", beside], background=True)[1]
        said = waiting["stdout"]
        while "ready" not in said:
            more = server.call("execute_command", session_id=waiting["session_id"], process_id=waiting["process_id"], wait=10)[1]
            said += more["stdout"]
            assert more["status"] == "running", more
        for way, run in zip(WAYS, (from_interpreter, from_command, from_background)):
            results = run(server, order, None)
            if networked:
                results += run(server, outward, server.networked(facts))
            for result in results:
                found[result["probe"]][way] = result
        for result in through_tools(host, user, server, tools, facts):
            found[result["probe"]]["tools"] = result
    finally:
        server.close()
    for result in through_weakened(host, user, weakened, facts):
        found[result["probe"]]["tools"] = result
    return found


def judge(probes, canary, attacked, weaknesses):
    """What is wrong, as lines."""
    wrong = []
    for name, probe in probes.items():
        if not canary[name]["escaped"] and not getattr(probe, "NEEDS", None):
            wrong.append(f"{name}: the canary did not succeed outside ({canary[name]['answer']}), so the probe proves nothing")
        for user, found in attacked.items():
            ways = ("tools",) if hasattr(probe, "TOOL") else WAYS
            known = user in weaknesses.get(name, {}).get("servers", ())
            for way in ways:
                result = found[name].get(way)
                if result is None:
                    wrong.append(f"{name}: no result from the {way} of {user}'s sandbox")
                elif result["escaped"] and not known:
                    wrong.append(f"{name}: ESCAPED from the {way} of {user}'s sandbox: {result['escaped']}")
                elif (result["answer"] or "").startswith("BROKEN"):
                    wrong.append(f"{name}: from the {way} of {user}'s sandbox: {result['answer']}")
            varies = weaknesses.get(name, {}).get("varies")
            if known and not varies and not any(found[name].get(way, {}).get("escaped") for way in ways):
                wrong.append(f"{name}: blocked in {user}'s sandbox, so weaknesses.toml need not name it any more")
    return wrong


def stale(probes):
    """What docs/security.md does not say as the probes do."""
    listed = re.findall(r"^\| \[.*\]\(\.\./escape/probes/(\w+)\.py\) \|", PAGE.read_text(), re.MULTILINE)
    new, gone = sorted(set(probes) - set(listed)), sorted(set(listed) - set(probes))
    wrong = [f"does not list {', '.join(new)}"] if new else []
    wrong += [f"lists {', '.join(gone)}, which are no more"] if gone else []
    return [f"docs/security.md {what}: run `make escape ESCAPE=--docs`" for what in wrong]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", action="store_true", help="write docs/security.md")
    parser.add_argument("--only", default="", metavar="TEXT", help="probes whose name contains this")
    parser.add_argument("--servers", default=EVERY_SERVER, metavar="LIST")
    arguments = parser.parse_args()
    whole = not arguments.only and arguments.servers == EVERY_SERVER
    if arguments.docs and not whole:
        parser.error("docs/security.md shows the whole suite: --docs goes with neither --only nor --servers")
    if platform.machine() != "x86_64" or os.geteuid() != 0:
        print("the escape suite needs root, for its canaries, and x86-64, whose system calls it knows", file=sys.stderr)
        return 77
    if not BELLJAR.is_file():
        print(f"there is no server at {BELLJAR}: run `make build` first", file=sys.stderr)
        return 1
    probes = load_probes(arguments.only)
    weaknesses = tomllib.loads((HERE / "weaknesses.toml").read_text())
    attacked = {}
    with Host() as host:
        began = time.monotonic()
        canary = canaries(host, probes)
        print(f"outside: {sum(bool(c['escaped']) for c in canary.values())} of {len(probes)} succeed, "
              f"{time.monotonic() - began:.0f} s", flush=True)
        for user in arguments.servers.split(","):
            began = time.monotonic()
            try:
                attacked[user] = attack(host, user, probes)
            except dockerd.NoEngine:
                continue
            out = sum(any(r["escaped"] for r in ways.values()) for ways in attacked[user].values())
            print(f"{user}: {len(probes) - out} of {len(probes)} blocked, {time.monotonic() - began:.0f} s", flush=True)
    wrong = judge(probes, canary, attacked, weaknesses)
    print(table.for_terminal(probes, canary, attacked, weaknesses))
    if whole and not arguments.docs:
        wrong += stale(probes)
    if arguments.docs and (missing := set(EVERY_SERVER.split(",")) - set(attacked)):
        wrong.append(f"there are no results of {', '.join(missing)}, which docs/security.md shows")
    if arguments.docs and not wrong:
        PAGE.write_text(table.page(probes, canary, attacked, weaknesses))
    elif arguments.docs:
        print("docs/security.md was not written, because of these:")
    for line in wrong:
        print(line)
    print(f"{len(probes)} probes, {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
