"""The lean client (`bench/client`), and Belljar as seen through it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BELLJAR = os.path.abspath(os.environ.get("BELLJAR") or ROOT / "target/release/belljar")
CLIENT = ROOT / "target/release/belljar-bench"
CACHE = ROOT / "target/bench-speed"
MODERN = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
START_LIMIT = 60


class Refused(Exception):
    """A server answered otherwise than it must, or not at all."""


class Driver:
    """One process of the lean client. It times; this only tells it what."""

    def __init__(self):
        self.process = subprocess.Popen([CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def order(self, order, **fields):
        self.process.stdin.write(json.dumps({"order": order, **fields}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise Refused("the client ended")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


def message(method, params):
    """A request as it goes over the wire, with `$ID` for its number."""
    text = json.dumps({"jsonrpc": "2.0", "id": "$ID", "method": method, "params": params}, separators=(",", ":"))
    return text.replace('"id":"$ID"', '"id":$ID', 1)


def headers(method, tool=None):
    """What a request over HTTP begins with."""
    told = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": MODERN, "Mcp-Method": method}
    return {**told, "Mcp-Name": tool} if tool else told


def environment(**settings):
    """What a server of ours starts with: nothing of the settings around us but where its templates are."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("BELLJAR", "MCP_"))}
    kept = ("BELLJAR_HOME", "BELLJAR_PYTHON", "BELLJAR_NODE")
    env.update({name: os.environ[name] for name in kept if name in os.environ})
    env["BELLJAR_CONFIG"] = str(CACHE / "empty.toml")
    env.update({f"BELLJAR_{name}": str(value) for name, value in settings.items()})
    return env


class Stdio:
    """An MCP server on pipes."""

    def __init__(self, driver, name, command, env, initialize=True):
        self.driver, self.name = driver, name
        self.log = CACHE / f"{name}.log"
        self.pid = driver.order("start", name=name, command=[str(part) for part in command], env=env, log=str(self.log))["pid"]
        if initialize:
            self.initialize()

    def initialize(self):
        client = {"name": "belljar-bench", "version": "1"}
        self.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client})
        self.driver.order("tell", name=self.name, line='{"jsonrpc":"2.0","method":"notifications/initialized"}')

    def calls(self, requests, order="calls", **how):
        try:
            return self.driver.order(order, name=self.name, requests=requests, **how)
        except Refused as error:
            said = self.log.read_text(errors="replace")[-500:].strip() if self.log.exists() else ""
            raise Refused(f"{self.name}: {error}" + (f"\n{said}" if said else "")) from None

    def request(self, method, params):
        """(the result, seconds since the server was started)."""
        answer = self.calls([message(method, params)], show=True)
        told = json.loads(answer["last"])
        if "result" not in told:
            raise Refused(f"{self.name}: {told.get('error')}")
        return told["result"], answer["age"]

    def call(self, tool, **arguments):
        result, _ = self.request("tools/call", {"name": tool, "arguments": arguments})
        if result.get("isError"):
            raise Refused(f"{self.name}: {tool}: {result['content'][0]['text']}")
        return result.get("structuredContent", result)

    def timed(self, tool, arguments, count=1, **how):
        """Seconds of each call. `arguments` may be a list, which is gone through in turn."""
        many = arguments if isinstance(arguments, list) else [arguments]
        requests = [message("tools/call", {"name": tool, "arguments": one}) for one in many]
        answer = self.calls(requests, count=max(count, len(requests)), **how)
        return [ns / 1e9 for ns in answer["ns"]]

    def close(self, patience=60):
        """(seconds until it was gone after the end of its input, whether it went by itself)"""
        closed = self.driver.order("close", name=self.name, patience=patience)
        return closed["seconds"], closed["by_itself"]


class Ours:
    """What both doors of ours have."""

    def create(self, language="python", name="bench"):
        return self.call("create_context", name=name, language=language)["context_id"]

    def stop(self, context):
        self.call("stop_context", context_id=context)

    def run(self, context, cell, count=1):
        expected = cell.expected('"result":"{}"') or '"success":true'
        return self.timed("run_code", {"context_id": context, "code": cell.code}, count, expect=expected)

    def warm_up(self, language="python", pause=1.0):
        """Waits until the interpreters are loaded and the pool is full."""
        context = self.create(language)
        self.call("run_code", context_id=context, code="1")
        self.stop(context)
        time.sleep(pause)

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        try:
            self.close()
        except Refused:
            if not failed:
                raise


class Belljar(Ours, Stdio):
    """`belljar mcp`."""

    number, gone = 0, False

    def __init__(self, driver, initialize=True, **settings):
        Belljar.number += 1
        command = [BELLJAR, "mcp", "--toolsets", "contexts"]
        super().__init__(driver, f"belljar-{Belljar.number}", command, environment(**settings), initialize)

    def listed(self, count):
        """Seconds of each tools/list."""
        return [ns / 1e9 for ns in self.calls([message("tools/list", {})], count=count, expect='"run_code"')["ns"]]

    def close(self, patience=60):
        """Seconds until it was gone; none if it is already."""
        if self.gone:
            return 0.0
        self.gone = True
        seconds, by_itself = super().close(patience)
        if not by_itself:
            raise Refused(f"{self.name} did not end within {patience} s of the end of its input, and was killed")
        return seconds


def new_home():
    """A home for a server that has only the templates of the real one."""
    real = os.environ.get("BELLJAR_HOME")
    if not real:
        data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
        real = os.path.join(data, "belljar")
    home = Path(tempfile.mkdtemp(prefix="belljar-bench-"))
    (home / "templates").symlink_to(Path(real, "templates").resolve())
    return home


def address(log, patience):
    """Where a server listens that writes this log, as soon as it is ready."""
    for _ in range(patience * 20):
        text = log.read_text(errors="replace")
        listening = re.search(r"listening on http://(127\.0\.0\.1:\d+)/mcp", text)
        if listening and "ready for requests" in text:
            return listening[1]
        time.sleep(0.05)
    raise Refused(f"belljar serve did not start: {text[-500:]}")


class Served(Ours):
    """`belljar serve` without a limit of the rate, with a home of its own that has only the templates of the real one."""

    def __init__(self, driver):
        self.driver = driver
        self.home = new_home()
        self.log = self.home / "log"
        self.process = subprocess.Popen([BELLJAR, "serve", "--port", "0", "--http-rate", "0"], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=self.log.open("wb"), env=environment(HOME=self.home))
        self.pid, self.connections = self.process.pid, set()
        self.address = address(self.log, START_LIMIT)

    def connection(self, method, tool):
        """The head of a request names the tool, so each has a connection of its own."""
        name = f"http-{tool or method}"
        if name not in self.connections:
            head = f"POST /mcp HTTP/1.1\r\nHost: {self.address}\r\n" + "".join(f"{key}: {value}\r\n" for key, value in headers(method, tool).items())
            self.driver.order("http", name=name, address=self.address, head=head)
            self.connections.add(name)
        return name

    def calls(self, method, params, tool=None, **how):
        return self.driver.order("calls", name=self.connection(method, tool), requests=[message(method, {**params, "_meta": META})], **how)

    def timed(self, tool, arguments, count=1, **how):
        answer = self.calls("tools/call", {"name": tool, "arguments": arguments}, tool, count=count, **how)
        return [ns / 1e9 for ns in answer["ns"]]

    def listed(self, count):
        """Seconds of each tools/list."""
        return [ns / 1e9 for ns in self.calls("tools/list", {}, count=count, expect='"run_code"')["ns"]]

    def call(self, tool, **arguments):
        answer = self.calls("tools/call", {"name": tool, "arguments": arguments}, tool, show=True)
        return json.loads(answer["last"])["result"]["structuredContent"]

    def close(self):
        self.process.terminate()
        self.process.wait(60)
        shutil.rmtree(self.home, ignore_errors=True)


def must_exist():
    for path, how in ((BELLJAR, "make setup"), (CLIENT, "cargo build --release -p belljar-bench")):
        if not os.access(path, os.X_OK):
            sys.exit(f"there is nothing at {path}: run `{how}` first")
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "empty.toml").touch()
