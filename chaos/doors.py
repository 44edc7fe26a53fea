"""The two doors, alike for whoever drives them: `call` returns a result, or raises `Refused`, `Failed` or one of `DOWN`."""

import itertools
import json
import os
import queue
import signal
import subprocess
import threading
import time
from http.client import HTTPException

from anatomy import PATIENCE, wait_until
from harness import BELLJAR, Failed, Refused, Server

# The server is not there, or was not until the end.
DOWN = (OSError, HTTPException, AssertionError, EOFError)
# Of anything that is asked of a server, whatever is wrong with it. Its own limits are shorter.
LIMIT = 100


class TooLong(Exception):
    """A call that was not answered in time."""


class Http:
    """A caller of `belljar serve`."""

    def __init__(self, serve, token, era="new"):
        self.serve, self.token, self.era = serve, token, era
        self.last = None
        self.client = None
        self.heard = lambda tool, arguments: None

    def connected(self):
        if self.client is None:
            self.client = self.serve.server.client(self.token, self.era)
        # The session goes on with whichever server there is.
        self.client.server = self.serve.server
        return self.client

    def call(self, tool, /, **arguments):
        began = time.monotonic()
        try:
            result = self.connected().call(tool, limit=LIMIT, **arguments)
        except TimeoutError:
            raise TooLong(f"{tool} was not answered within {time.monotonic() - began:.0f} s") from None
        except Refused:
            self.heard(tool, arguments)
            raise
        self.heard(tool, arguments)
        return result

    def read(self, uri):
        return self.connected().request("resources/read", {"uri": uri})


class Serve:
    """`belljar serve`, which may be killed and started again: its contexts live on."""

    lasting = True

    def __init__(self, home, arguments=(), env=None):
        self.home, self.arguments, self.env = home, arguments, env
        self.server = None
        self.killed = lambda: None

    @property
    def pid(self):
        return self.server.pid

    def start(self):
        self.server = Server(*self.arguments, home=self.home, env=self.env, ready=False)

    def is_up(self):
        return self.server.process.poll() is None

    def healthy(self):
        try:
            return self.server.http("GET", "/health").status == 200
        except DOWN:
            return False

    def why_not(self):
        try:
            return self.server.http("GET", "/health").body.decode()[:2000]
        except DOWN as down:
            return repr(down)

    def kill(self):
        self.server.kill()
        self.killed()

    def stop(self):
        return self.server.stop(90)

    def log(self):
        return self.server.log()[-4000:]


class Pipe:
    """`belljar mcp`: one client, whose end is the end of everything."""

    lasting = False

    def __init__(self, home, arguments=(), env=None):
        self.home, self.arguments, self.env = home, arguments, env
        self.process = None
        self.killed = lambda: None

    @property
    def pid(self):
        return self.process.pid

    def start(self):
        self.log_path = self.home.logs / f"stderr-{time.monotonic_ns()}"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [BELLJAR, "mcp", "--pool-size", "1", "--pool-languages", "python", *self.arguments],
                env=self.home.environment(self.env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self.ids, self.waiting, self.writing = itertools.count(1), {}, threading.Lock()
        threading.Thread(target=self._listen, args=(self.process, self.waiting), daemon=True).start()
        self.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {},
                                    "clientInfo": {"name": "chaos", "version": "1"}})
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    @staticmethod
    def _listen(process, waiting):
        for line in process.stdout:
            message = json.loads(line)
            if "id" in message and "method" not in message:
                waiting.pop(message["id"], queue.SimpleQueue()).put(message)
        for answer in list(waiting.values()):
            answer.put(None)

    def _send(self, message):
        with self.writing:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def request(self, method, params):
        process, number, answer = self.process, next(self.ids), queue.SimpleQueue()
        self.waiting[number] = answer
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        end = time.monotonic() + LIMIT * PATIENCE
        while True:
            try:
                message = answer.get(timeout=1)
                break
            except queue.Empty:
                if process.poll() is not None:
                    raise EOFError("the server is gone") from None
                if time.monotonic() > end:
                    raise TooLong(f"{method} was not answered within {LIMIT} s") from None
        if message is None:
            raise EOFError("the server closed its output")
        if "error" in message:
            raise Failed(message["error"], 0)
        return message["result"]

    def is_up(self):
        return self.process.poll() is None

    def healthy(self):
        return self.is_up()

    def why_not(self):
        return f"exit code {self.process.poll()}"

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.killed()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60 * PATIENCE)
        # As programs do that are ended by a signal they heed.
        return 0 if code in (0, 143, -signal.SIGTERM) else code

    def log(self):
        return self.log_path.read_text(errors="replace")[-4000:]


class PipeClient:
    def __init__(self, pipe):
        self.pipe, self.last = pipe, None
        self.heard = lambda tool, arguments: None

    def call(self, tool, /, **arguments):
        result = self.pipe.request("tools/call", {"name": tool, "arguments": arguments})
        self.heard(tool, arguments)
        if result.get("isError") and "structuredContent" not in result:
            raise Refused(json.loads(result["content"][0]["text"]))
        return result["structuredContent"]

    def read(self, uri):
        return self.pipe.request("resources/read", {"uri": uri})


__all__ = ["DOWN", "BELLJAR", "Failed", "Http", "Pipe", "PipeClient", "Refused", "Serve", "TooLong", "os", "wait_until"]
