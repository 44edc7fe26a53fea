"""What the HTTP tests share: a server in a home of its own, raw requests in every era, and a look at what is left."""

import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

from machine import command, open_files, processes

ROOT = Path(__file__).resolve().parents[2]
BELLJAR = os.path.abspath(os.environ.get("BELLJAR") or ROOT / "target/release/belljar")
# How much longer than usual things may take, for slow or busy machines.
PATIENCE = float(os.environ.get("BELLJAR_TEST_PATIENCE") or 1)

NEW, OLD = "2026-07-28", "2025-11-25"
PREFIX = "io.modelcontextprotocol/"
CLIENT = {"name": "belljar-tests", "version": "1"}
# One language, one sandbox: servers start sooner.
SMALL = ("--pool-size", "1", "--pool-languages", "python")


def templates():
    """Interpreters take long to build, so those of the machine's own Belljar are used."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(os.environ.get("BELLJAR_HOME") or os.path.join(data, "belljar"), "templates").resolve()


def wait_until(condition, seconds):
    """The last value of `condition()`: truthy, unless the time ran out."""
    end = time.monotonic() + seconds * PATIENCE
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


def meta(extensions=None, **more):
    capabilities = {"extensions": extensions} if extensions else {}
    return {PREFIX + "protocolVersion": NEW, PREFIX + "clientInfo": CLIENT, PREFIX + "clientCapabilities": capabilities,
            **more}


class Home:
    """A directory for a server's state, with what may be left there when it is gone."""

    def __init__(self, path=None):
        self.path = Path(path or tempfile.mkdtemp(prefix="belljar-http-")).resolve()
        (self.path / "templates").symlink_to(templates())
        self.config = self.path / "settings.toml"
        self.config.touch()
        self.instances = set()  # names that cgroups of this home have
        self.logs = self.path

    def environment(self, env=None):
        kept = ("PATH", "HOME", "USER", "LANG", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "BELLJAR_PYTHON", "BELLJAR_NODE")
        own = {name: os.environ[name] for name in kept if name in os.environ}
        return {**own, "BELLJAR_HOME": str(self.path), "BELLJAR_CONFIG": str(self.config), **(env or {})}

    def token(self, *arguments):
        """`belljar token …`, its standard output."""
        done = subprocess.run([BELLJAR, "token", *arguments], env=self.environment(), capture_output=True, text=True,
                              timeout=30 * PATIENCE)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    def jailers(self):
        """Processes that hold sandboxes of this home: what they have open tells."""
        return [pid for pid in processes() if "__jail" in command(pid) and any(
            path.startswith(f"{self.path}/run/") for path in open_files(pid))]

    def tree(self):
        """pid → start time, of the jailers and everything below them."""
        table, found = processes(), {}
        self.instances |= {path.name for path in (self.path / "run").glob("*")}
        generation = set(self.jailers())
        while generation:
            found.update((pid, table[pid][1]) for pid in generation if pid in table)
            generation = {pid for pid, (parent, _) in table.items() if parent in generation} - set(found)
        return found

    def zygote(self):
        """The process that Python interpreters are forked from. Those of an earlier one have lost their parent."""
        table = processes()
        named = {pid for pid in self.tree() if "belljar_zygote.py" in command(pid) and pid in table}
        return max((pid for pid in named if table[pid][0] not in named), key=lambda pid: table[pid][1])

    def left(self, tree=()):
        table = processes()
        alive = [command(pid) for pid, start in dict(tree).items() if table.get(pid, (0, 0))[1] == start]
        run = [str(path) for path in (self.path / "run").glob("*")]
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{self.path}/run" in line]
        groups = [top for top, _, _ in os.walk("/sys/fs/cgroup") if Path(top).name.removeprefix("belljar-") in self.instances]
        return alive + run + mounts + groups + [command(pid) for pid in self.jailers()]

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)


class Server:
    """`belljar serve` on a free port. Whatever it left behind fails the test that closes it."""

    def __init__(self, *arguments, home=None, env=None, size=SMALL, ready=True, prefix=()):
        self.own_home = home is None
        self.home = home or Home()
        self.log_path = self.home.logs / f"stderr-{time.monotonic_ns()}"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [*prefix, BELLJAR, "serve", *(() if "--port" in arguments else ("--port", "0")), *size, *arguments],
                env=self.home.environment(env), stdout=subprocess.DEVNULL, stderr=log)
        self.pid = self.process.pid
        self.port = None
        found = wait_until(lambda: self.process.poll() is not None or self._listening(), 30)
        if not found or self.port is None:
            failure = f"the server did not start: {self.log()}"
            self.kill()
            if self.own_home:
                self.home.remove()
            raise RuntimeError(failure)
        if ready:
            self.wait_healthy()

    def _listening(self):
        if match := re.search(r"listening on http://[^\"\s]*:(\d+)/mcp", self.log()):
            self.port = int(match[1])
        return self.port

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_healthy(self, seconds=60):
        if not wait_until(lambda: self.http("GET", "/health").status == 200, seconds):
            raise AssertionError(f"not healthy: {self.http('GET', '/health').body}\n{self.log()}")

    def connect(self, timeout=60):
        return socket.create_connection(("127.0.0.1", self.port), timeout * PATIENCE)

    def http(self, method, path, body=None, headers=None, timeout=60):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def raw(self, data, timeout=60, half_close=False):
        """Sends bytes, reads until the server closes."""
        with self.connect(timeout) as stream:
            try:
                stream.sendall(data)
                if half_close:
                    stream.shutdown(socket.SHUT_WR)
            except OSError:  # it may have answered and gone already
                pass
            received = b""
            try:
                while part := stream.recv(65536):
                    received += part
            except ConnectionResetError:
                pass
            return received

    def client(self, token=None, era="new"):
        return Client(self, token, era)

    def rss(self):
        """Resident megabytes of the server alone."""
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[1]) / 1024

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def stop(self, seconds=45):
        """SIGTERM. Returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds * PATIENCE)

    def close(self):
        tree = self.home.tree()
        try:
            if self.process.poll() is None:
                code = self.stop()
                assert code == 0, f"exit code {code}\n{self.log()}"
                if self.own_home:
                    left = wait_until(lambda: not self.home.left(tree), 5) or self.home.left(tree)
                    assert left is True, f"left behind: {left}\n{self.log()}"
        finally:
            self.kill()
            if self.own_home:
                self.home.remove()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    def json(self):
        return json.loads(self.body)

    def message(self):
        """The JSON-RPC message, be it JSON or the last of a stream of events."""
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            data = [line[5:].strip() for line in self.body.decode().splitlines() if line.startswith("data:")]
            answers = [json.loads(line) for line in data if line]
            return [message for message in answers if "method" not in message][-1]
        return self.json()


class Refused(Exception):
    """A tool said that the request cannot be carried out."""

    def __init__(self, told):
        super().__init__(told)
        self.code, self.message = told["code"], told["error"]


class Failed(Exception):
    """A JSON-RPC error."""

    def __init__(self, error, status):
        super().__init__(error)
        self.code, self.message, self.status = error["code"], error["message"], status


class Client:
    """One caller. `era`: "new", "session" (begins with initialize) or "plain" (the old era, without a session)."""

    def __init__(self, server, token=None, era="new"):
        self.server, self.era, self.ids = server, era, itertools.count(1)
        self.headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        self.extensions = None
        if token:
            self.headers["Authorization"] = f"Bearer {token}"
        if era == "session":
            answer = self.post(self.message("initialize", {"protocolVersion": OLD, "capabilities": {}, "clientInfo": CLIENT}))
            assert answer.status == 200, (answer.status, answer.body)
            self.session = answer.headers["Mcp-Session-Id"]
            self.headers.update({"Mcp-Session-Id": self.session, "MCP-Protocol-Version": OLD})
            self.initialized = answer.message()["result"]
            assert self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).status == 202

    def message(self, method, params=None):
        params = dict(params or {})
        if self.era == "new":
            params["_meta"] = {**meta(self.extensions), **params.get("_meta", {})}
        return {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": params}

    def headers_of(self, message):
        if self.era != "new":
            return self.headers
        params = message.get("params", {})
        name = params.get("name") or params.get("uri") or params.get("taskId")
        named = {"Mcp-Name": name} if name else {}
        return {**self.headers, "MCP-Protocol-Version": NEW, "Mcp-Method": message["method"], **named}

    def post(self, message, headers=None, timeout=60):
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        headers = self.headers if isinstance(message, bytes) else {**self.headers_of(message), **(headers or {})}
        return self.server.http("POST", "/mcp", body, headers, timeout)

    def request(self, method, params=None, timeout=60):
        answer = self.post(self.message(method, params), timeout=timeout)
        try:
            message = answer.message()
        except ValueError:
            raise AssertionError(f"{answer.status} {answer.body!r}") from None
        if "error" in message:
            raise Failed(message["error"], answer.status)
        return message["result"]

    def result(self, tool, /, *, limit=60, **arguments):
        return self.request("tools/call", {"name": tool, "arguments": arguments}, limit)

    def call(self, tool, /, *, limit=60, **arguments):
        result = self.result(tool, limit=limit, **arguments)
        if result.get("isError") and "structuredContent" not in result:
            raise Refused(json.loads(result["content"][0]["text"]))
        return result["structuredContent"]

    def context(self, name="test", **arguments):
        return self.call("create_context", name=name, **arguments)["context_id"]

    def run(self, context, code, **arguments):
        return self.call("run_code", context_id=context, code=code, **arguments)

    def value(self, context, code, **arguments):
        ran = self.run(context, code, **arguments)
        assert ran["success"], ran
        return ran.get("result")

    def open(self, tool, /, **arguments):
        """Sends a call and does not wait for its answer. Closing the socket leaves it."""
        message = self.message("tools/call", {"name": tool, "arguments": arguments})
        body = json.dumps(message).encode()
        head = {"Host": "localhost", **self.headers_of(message), "Content-Length": len(body)}
        stream = self.server.connect()
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        stream.sendall(f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + body)
        return stream


class HttpTestCase(unittest.TestCase):
    """One server for all tests of a class."""

    arguments = ()
    env = {}
    size = SMALL

    @classmethod
    def setUpClass(cls):
        cls.home = Home()
        cls.addClassCleanup(cls.home.remove)
        cls.prepare()
        cls.server = Server(*cls.arguments, home=cls.home, env=cls.env, size=cls.size)
        cls.addClassCleanup(cls.end)

    @classmethod
    def prepare(cls):
        """Before the server starts."""

    @classmethod
    def end(cls):
        tree = cls.home.tree()
        cls.server.close()
        left = wait_until(lambda: not cls.home.left(tree), 5) or cls.home.left(tree)
        assert left is True, f"left behind: {left}\n{cls.server.log()}"

    def assert_healthy(self):
        answer = self.server.http("GET", "/health")
        self.assertEqual(answer.status, 200, (answer.body, self.server.log()[-3000:]))

    def assert_failed(self, code, status, answer):
        self.assertEqual((answer.status, answer.message()["error"]["code"]), (status, code), answer.body)
        return answer.message()["error"]["message"]

    def assert_refused(self, code, client, tool, /, **arguments):
        with self.assertRaises(Refused) as caught:
            client.call(tool, **arguments)
        self.assertEqual(caught.exception.code, code, caught.exception)
        self.assertGreater(len(caught.exception.message), 20)
        return caught.exception.message


class Background(threading.Thread):
    """Work in a thread; `join` returns its value or raises its error."""

    def __init__(self, work, *arguments, **named):
        super().__init__(daemon=True)
        self.work, self.value, self.error = (lambda: work(*arguments, **named)), None, None
        self.start()

    def run(self):
        try:
            self.value = self.work()
        except BaseException as error:
            self.error = error

    def join(self, seconds=60):
        super().join(seconds * PATIENCE)
        if self.is_alive():
            raise TimeoutError("it goes on and on")
        if self.error:
            raise self.error
        return self.value
