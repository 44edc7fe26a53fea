"""What the client tests share: the server under test, two ways to talk to it, and a look at what it leaves behind."""

import asyncio
import atexit
import concurrent.futures
import contextlib
import itertools
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BELLJAR = os.path.abspath(os.environ.get("BELLJAR") or ROOT / "target/release/belljar")
# How much longer than usual things may take, for slow or busy machines.
PATIENCE = float(os.environ.get("BELLJAR_TEST_PATIENCE") or 1)
# Whoever started the tests may ignore it, and servers started here would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

LEGACY = "2025-11-25"
MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "belljar-tests", "version": "1"},
}

# Settings of the person who runs the tests must not change what they see.
_settings = tempfile.NamedTemporaryFile(prefix="belljar-tests-", suffix=".toml")
atexit.register(_settings.close)


def home():
    """Where the server keeps its state: templates are shared with the machine's own Belljar."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(os.environ.get("BELLJAR_HOME") or os.path.join(data, "belljar"))


def environment(**settings):
    """`POOL_SIZE=0` becomes `BELLJAR_POOL_SIZE=0`."""
    kept = ("PATH", "HOME", "USER", "LANG", "TERM", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS",
            "BELLJAR_HOME", "BELLJAR_PYTHON", "BELLJAR_NODE")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    env["BELLJAR_CONFIG"] = _settings.name
    env.update({f"BELLJAR_{name}": str(value) for name, value in settings.items()})
    return env


def wait_until(condition, seconds):
    """The last value of `condition()`: truthy, unless the time ran out."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


class Refused(Exception):
    """A tool said that the request cannot be carried out."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Failed(Exception):
    """A JSON-RPC error."""

    def __init__(self, error):
        super().__init__(error)
        self.code, self.message, self.data = error["code"], error["message"], error.get("data")


class Raw:
    """A server on pipes, without a client library in between. Safe to use from several threads."""

    def __init__(self, *arguments, start=True, legacy=False, env=None, toolsets="contexts", **settings):
        self.log = tempfile.TemporaryFile(prefix="belljar-stderr-")
        self.legacy = legacy
        self.process = subprocess.Popen(
            [BELLJAR, "mcp", "--toolsets", toolsets, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.log, env=env or environment(**settings), bufsize=0,
        )
        self.pid = self.process.pid
        self.noise = []  # lines on stdout that are not JSON-RPC messages
        self.loose = queue.Queue()  # notifications, and answers to nobody
        self._ids, self._waiting, self._lock = itertools.count(1), {}, threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if start:
            self.initialize() if legacy else self.request("server/discover", {})

    def _read(self):
        for line in self.process.stdout:
            try:
                message = json.loads(line)
                assert message["jsonrpc"] == "2.0"
            except (ValueError, KeyError, TypeError, AssertionError):
                self.noise.append(line)
                continue
            waiting = self._waiting.pop(message.get("id"), None) if "method" not in message else None
            (waiting or self.loose).put(message)
        for waiting in list(self._waiting.values()):
            waiting.put(None)

    def write(self, data):
        with self._lock:
            view = memoryview(data)
            while view:
                view = view[os.write(self.process.stdin.fileno(), view):]

    def send(self, message):
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def start(self, method, params=None):
        """Sends a request; returns its id and the queue where its answer will be."""
        if not self.legacy:
            params = {**(params or {}), "_meta": {**META, **(params or {}).get("_meta", {})}}
        number, answer = next(self._ids), queue.Queue()
        self._waiting[number] = answer
        self.send({"id": number, "method": method, "params": params or {}})
        return number, answer

    def finish(self, answer, timeout=60):
        try:
            message = answer.get(timeout=timeout * PATIENCE)
        except queue.Empty:
            raise TimeoutError(f"no answer in {timeout * PATIENCE:g} s\n{self.stderr()}") from None
        if message is None:
            raise EOFError(f"the server closed its output\n{self.stderr()}")
        if "error" in message:
            raise Failed(message["error"])
        return message["result"]

    def request(self, method, params=None, timeout=60):
        return self.finish(self.start(method, params)[1], timeout)

    def initialize(self):
        client = {"name": "belljar-tests", "version": "1"}
        result = self.request("initialize", {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": client})
        self.send({"method": "notifications/initialized"})
        return result

    def start_call(self, tool, /, **arguments):
        return self.start("tools/call", {"name": tool, "arguments": arguments})

    def finish_call(self, answer, timeout=60):
        result = self.finish(answer, timeout)
        if result.get("isError"):
            told = json.loads(result["content"][0]["text"])
            raise Refused(told["code"], told["error"])
        return result["structuredContent"]

    def call(self, tool, /, *, wait=60, **arguments):
        return self.finish_call(self.start_call(tool, **arguments)[1], wait)

    def context(self, language="python", name="test"):
        return self.call("create_context", name=name, language=language)["context_id"]

    def run(self, context, code, **arguments):
        return self.call("run_code", context_id=context, code=code, **arguments)

    def stderr(self):
        self.log.seek(0)
        return self.log.read().decode("utf-8", "replace")

    def hang_up(self):
        """End of input. Returns how long the server took to end."""
        began = time.monotonic()
        self.process.stdin.close()
        self.process.wait(10 * PATIENCE)
        return time.monotonic() - began

    def close(self):
        if self.process.poll() is None:
            try:
                self.hang_up()
            except (OSError, subprocess.TimeoutExpired):
                self.process.kill()
                self.process.wait()
        self._reader.join(5)
        for stream in (self.process.stdin, self.process.stdout, self.log):
            stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Kept:
    """A public client on an event loop of its own, so that many tests share one connection."""

    def keep(self, connection):
        """Enters the asynchronous context `connection`, until `close`."""
        self.loop = asyncio.new_event_loop()
        self.client, self._ready, self._failure = None, threading.Event(), None

        async def live():
            self._stop = asyncio.Event()
            try:
                async with connection as self.client:
                    self._ready.set()
                    await self._stop.wait()
            except BaseException as error:
                self._failure = error
                if self._ready.is_set():
                    raise
            finally:
                self._ready.set()

        def run():
            with contextlib.closing(self.loop):
                self.loop.run_until_complete(live())

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        if not self._ready.wait(60 * PATIENCE) or self._failure:
            raise RuntimeError(f"cannot connect: {self._failure!r}\n{self.stderr()}") from self._failure

    def start(self, coroutine):
        """A future; cancelling it cancels the request."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def wait(self, coroutine, timeout=60):
        future = self.start(coroutine)
        try:
            return future.result(timeout * PATIENCE)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise AssertionError(f"no answer in {timeout * PATIENCE:g} s\n{self.stderr()}") from None

    def close(self):
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
            self.thread.join(15)


class Sdk(Kept):
    """The current Python client, with the server on pipes."""

    def __init__(self, mode, *arguments, **settings):
        import mcp
        from mcp.client.stdio import StdioServerParameters, stdio_client

        self.log = tempfile.TemporaryFile("w+", prefix="belljar-stderr-")
        parameters = StdioServerParameters(
            command=BELLJAR, args=["mcp", "--toolsets", "contexts", *arguments], env=environment(**settings))
        self.keep(mcp.Client(stdio_client(parameters, errlog=self.log), mode=mode))

    def stderr(self):
        self.log.flush()
        return Path(f"/proc/self/fd/{self.log.fileno()}").read_text(errors="replace")

    def close(self):
        super().close()
        self.log.close()


class SdkTestCase(unittest.TestCase):
    """One server for all tests of a class; each test makes its own contexts, which end with it."""

    mode = "auto"
    arguments = ()
    settings = {}
    _names = itertools.count(1)

    @classmethod
    def setUpClass(cls):
        cls.server = Sdk(cls.mode, *cls.arguments, **cls.settings)
        cls.addClassCleanup(cls.server.close)
        cls.client = cls.server.client

    def start(self, tool, /, *, progress=None, **arguments):
        return self.server.start(self.client.call_tool(tool, arguments, progress_callback=progress))

    def finish(self, future, wait=60):
        try:
            return future.result(wait * PATIENCE)
        except concurrent.futures.TimeoutError:
            future.cancel()
            self.fail(f"no answer in {wait * PATIENCE:g} s\n{self.server.stderr()}")

    def result(self, tool, /, *, wait=60, **arguments):
        """The whole result, which must not be an error."""
        result = self.finish(self.start(tool, **arguments), wait)
        self.assertFalse(result.is_error, result.content)
        return result

    def call(self, tool, /, *, wait=60, **arguments):
        return self.result(tool, wait=wait, **arguments).structured_content

    def refused(self, expected, tool, /, **arguments):
        """The tool must say no with this code. Returns its message."""
        result = self.finish(self.start(tool, **arguments))
        self.assertTrue(result.is_error, result.content)
        self.assertEqual([block.type for block in result.content], ["text"])
        told = json.loads(result.content[0].text)
        self.assertEqual(set(told), {"error", "code"})
        self.assertEqual(told["code"], expected, told)
        self.assertGreater(len(told["error"]), 10)
        return told["error"]

    def context(self, language="python", name=None):
        name = name or f"{self._testMethodName[:80]}-{next(self._names)}"
        context = self.call("create_context", name=name, language=language)["context_id"]
        self.addCleanup(self.stop_quietly, context)
        return context

    def stop_quietly(self, context):
        try:
            self.server.wait(self.client.call_tool("stop_context", {"context_id": context}))
        except Exception as error:
            print(f"stop_context failed: {error!r}", file=sys.stderr)

    def run_code(self, context, code, *, wait=60, **arguments):
        return self.call("run_code", wait=wait, context_id=context, code=code, **arguments)

    def value(self, context, code, **arguments):
        """The value of a program that must not fail."""
        ran = self.run_code(context, code, **arguments)
        self.assertTrue(ran["success"], ran)
        return ran.get("result")


# What a server has on the machine.


def processes():
    """pid → (parent, start time, command), of every process."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
            except OSError:
                continue
            comm, rest = stat[stat.index("(") + 1:].rsplit(")", 1)
            fields = rest.split()
            if fields[0] not in "ZX":
                found[int(entry.name)] = (int(fields[1]), int(fields[19]), comm)
    return found


def descendants(pid):
    table, found, generation = processes(), {}, {pid}
    while generation:
        generation = {child for child, (parent, *_) in table.items() if parent in generation}
        found.update((child, table[child][1:]) for child in generation)
    return found


def cgroups(instance):
    """Directories of the instance's cgroups, in every hierarchy."""
    found = []
    for top, directories, _ in os.walk("/sys/fs/cgroup"):
        if Path(top).name == f"belljar-{instance}":
            found.append(top)
            found += [os.path.join(top, name) for name in directories]
            directories.clear()
    return found


class Footprint:
    """Everything that belongs to a running server, recorded so that one can look for it after its end."""

    def __init__(self, pid):
        self.processes = descendants(pid)
        self.instances = set()
        for child in self.processes:
            self.instances |= self._locks(child) | self._cgroups(child)

    @staticmethod
    def _locks(pid):
        found = set()
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                if match := re.fullmatch(re.escape(str(home() / "run")) + r"/([^/]+)/lock", target):
                    found.add(match[1])
        except OSError:
            pass
        return found

    @staticmethod
    def _cgroups(pid):
        try:
            return set(re.findall(r"/belljar-([^/\n]+)", Path(f"/proc/{pid}/cgroup").read_text()))
        except OSError:
            return set()

    def alive(self):
        """Processes that were there and still are, or came into the same cgroups since."""
        table = processes()
        left = {pid: comm for pid, (start, comm) in self.processes.items() if table.get(pid, (0, 0))[1] == start}
        for pid, (_, _, comm) in table.items():
            if self._cgroups(pid) & self.instances:
                left[pid] = comm
        return left

    def on_disk(self):
        """Cgroups, run directories and mounts."""
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        left = []
        for instance in self.instances:
            left += cgroups(instance)
            left += [str(path) for path in (home() / "run").glob(f"*{instance}*")]
            left += [line for line in mounts if instance in line]
        return left

    def left(self):
        return [*self.alive().items(), *self.on_disk()]


def ends(process, seconds):
    """Whether the process ends in time."""
    try:
        process.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        return False


def kill(pid, sig=signal.SIGKILL):
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass
