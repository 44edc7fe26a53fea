"""`belljar serve` under test, and public clients that talk to it over HTTP."""

import concurrent.futures
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from harness import BELLJAR, PATIENCE, Footprint, Kept, cgroups, ends, environment, home, kill, processes, wait_until


class Server:
    """A server on a free port, with a home of its own. Sandboxes outlive one that is killed: `close` looks."""

    def __init__(self, *arguments, **settings):
        self.home = Path(tempfile.mkdtemp(prefix="belljar-home-"))
        (self.home / "templates").symlink_to(home() / "templates")
        self.arguments, self.env = arguments, environment(HOME=self.home, LOG="info", **settings)
        self.log = self.home / "stderr.txt"
        self.port, self.instances = 0, set()
        try:
            self.start()
        except BaseException:
            shutil.rmtree(self.home, ignore_errors=True)
            raise

    def start(self):
        """On the port of the last time, if there was one."""
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [BELLJAR, "serve", "--port", str(self.port), *self.arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=self.env)

        def listening():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended at once\n{self.stderr()}")
            return re.search(r"listening on http://127\.0\.0\.1:(\d+)/mcp", self.stderr())

        found = wait_until(listening, 60 * PATIENCE)
        if not found:
            self.process.kill()
            raise RuntimeError(f"the server does not listen\n{self.stderr()}")
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.look()

    def look(self):
        run = self.home / "run"
        self.instances |= {entry.name for entry in run.iterdir() if entry.is_dir()} if run.exists() else set()

    def crash(self):
        self.look()
        self.process.kill()
        self.process.wait()

    def token(self, name):
        made = subprocess.run([BELLJAR, "token", "add", name], env=self.env, capture_output=True, text=True, check=True)
        return made.stdout.strip()

    def stderr(self):
        return self.log.read_text(errors="replace")

    def family(self):
        """Processes that have a file of this home open, or are in cgroups of its sandboxes."""
        found = {}
        for pid, (_, _, comm) in processes().items():
            try:
                files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            except OSError:
                files = []
            if any(file.startswith(f"{self.home}/run") for file in files) or Footprint._cgroups(pid) & self.instances:
                found[pid] = comm
        return found

    def left(self):
        run = self.home / "run"
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return [
            *self.family().items(),
            *(run.iterdir() if run.exists() else ()),
            *(path for instance in self.instances for path in cgroups(instance)),
            *(line for line in mounts if str(self.home) in line),
        ]

    def close(self):
        """Ends it, and raises if it leaves anything behind."""
        if self.process.poll() is not None:
            self.start()
        self.look()
        self.process.send_signal(signal.SIGTERM)
        ended = ends(self.process, 20 * PATIENCE)
        if ended:
            wait_until(lambda: not self.left(), 10 * PATIENCE)
        left, said = self.left(), self.stderr()
        if not ended:
            self.process.kill()
            self.process.wait()
        for pid in self.family():
            kill(pid)
        shutil.rmtree(self.home, ignore_errors=True)
        assert ended, f"the server does not end\n{said}"
        assert self.process.returncode == 0, f"exit code {self.process.returncode}\n{said}"
        assert not left, f"left behind: {left}\n{said}"


class Client(Kept):
    """What the tests need of a client. Results are plain JSON, as they came over the wire."""

    version = None  # of the protocol

    def __init__(self, server, token=None):
        self.server = server
        self.keep(self.connect(server.url, {"Authorization": f"Bearer {token}"} if token else {}))

    def connect(self, url, headers):
        """An asynchronous context whose value becomes `client`."""
        raise NotImplementedError

    async def tools(self):
        raise NotImplementedError

    async def call(self, tool, arguments, progress):
        raise NotImplementedError

    async def resources(self):
        raise NotImplementedError

    async def read(self, uri):
        raise NotImplementedError

    def stderr(self):
        return self.server.stderr()


def plain(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


class ServeTestCase(unittest.TestCase):
    """One server and one client for all tests of a class."""

    client_class = None
    arguments = ()
    _names = itertools.count(1)

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.arguments)
        cls.addClassCleanup(cls.server.close)
        cls.client = cls.connect()

    @classmethod
    def connect(cls, token=None):
        client = cls.client_class(cls.server, token)
        cls.addClassCleanup(client.close)
        return client

    def start(self, tool, /, *, progress=None, client=None, **arguments):
        client = client or self.client
        return client.start(client.call(tool, arguments, progress))

    def finish(self, future, wait=60):
        try:
            return future.result(wait * PATIENCE)
        except concurrent.futures.TimeoutError:
            future.cancel()
            self.fail(f"no answer in {wait * PATIENCE:g} s\n{self.server.stderr()}")

    def result(self, tool, /, *, failed=False, client=None, **arguments):
        """The whole result; `failed` says whether it must be an error."""
        result = self.finish(self.start(tool, client=client, **arguments))
        self.assertEqual(result.get("isError", False), failed, result["content"])
        return result

    def call(self, tool, /, **arguments):
        return self.result(tool, **arguments)["structuredContent"]

    def refused(self, expected, tool, /, **arguments):
        """The tool must say no with this code. Returns its message."""
        result = self.result(tool, failed=True, **arguments)
        told = json.loads(result["content"][0]["text"])
        self.assertEqual(told["code"], expected, told)
        return told["error"]

    def ask(self, coroutine):
        return self.client.wait(coroutine)

    def name(self):
        return f"{self._testMethodName[:60]}-{next(self._names)}"

    def context(self, language="python", name=None):
        context = self.call("create_context", name=name or self.name(), language=language)["context_id"]
        self.addCleanup(self.stop_quietly, context)
        return context

    def session(self, code="", **arguments):
        """The id of a new session."""
        made = self.call("execute_code", code=code, **arguments)
        self.assertTrue(made["session_created"])
        self.addCleanup(self.stop_quietly, made["session_id"])
        return made["session_id"]

    def stop_quietly(self, session):
        try:
            self.finish(self.start("stop_session", session_id=session))
        except Exception as error:
            print(f"stop_session failed: {error!r}", file=sys.stderr)

    def run_code(self, context, code, **arguments):
        return self.call("run_code", context_id=context, code=code, **arguments)

    def value(self, context, code, **arguments):
        """The value of a program that must not fail."""
        ran = self.run_code(context, code, **arguments)
        self.assertTrue(ran["success"], ran)
        return ran.get("result")
