"""The callers of load.py: what they ask, and how they know that an answer is theirs.

They share the processors with the server and its sandboxes, so they speak HTTP themselves, and no more of it than they
need.
"""

import asyncio
import collections
import itertools
import json
import random
import time

NEWEST, OLDER = "2026-07-28", "2025-11-25"
CLIENT = {"name": "belljar-load", "version": "1"}
META = json.dumps({
    "io.modelcontextprotocol/protocolVersion": NEWEST,
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}).encode()
# Safety limits: nothing is expected to come near them.
ANSWER_LIMIT, RETRIES = 60, 200
# A caller that sees more than this gives up: the rest would only repeat it.
MAX_FAILURES = 10
NUMBERS = itertools.count(1)


class Unanswered(Exception):
    """The connection failed, or what came over it was not HTTP."""


class Refused(Exception):
    """An answer that says no."""


class Foreign(Exception):
    """An answer that is not the one to this request."""


# HTTP


class Connection:
    """One connection, one request at a time."""

    def __init__(self, server):
        self.server, self.reader, self.writer, self.start = server, None, None, 0

    async def open(self):
        """Bounded retries: right after a restart nobody listens yet."""
        for attempt in range(RETRIES):
            self.start = self.server.starts
            try:
                self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.server.port, limit=1 << 22)
                return
            except OSError as error:
                last = error
                await asyncio.sleep(min(0.3, 0.02 * (attempt + 1)) * random.uniform(0.7, 1.3))
        raise Unanswered(f"no connection: {last}")

    def close(self):
        if self.writer:
            self.writer.close()
        self.reader = self.writer = None

    async def exchange(self, head, body):
        """(status, headers, body) of the answer."""
        if not self.writer:
            await self.open()
        try:
            self.writer.write(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
            limit = asyncio.get_running_loop().call_later(ANSWER_LIMIT, self.writer.transport.abort)
            try:
                return await self.answer()
            finally:
                limit.cancel()
        except (OSError, EOFError, ValueError, LookupError) as error:
            self.close()
            raise Unanswered(f"{type(error).__name__}: {error}") from error

    async def answer(self):
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readuntil(b"\r\n")
        else:
            body = await self.reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        return int(first.split()[1]), headers, body


def of_stream(body):
    """The last message of an event stream."""
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    if not lines:
        raise Unanswered("an event stream ended without an answer")
    return lines[-1]


# Callers


class Figures:
    def __init__(self):
        self.took = collections.defaultdict(list)
        self.began, self.ended = time.perf_counter(), None

    def count(self):
        return sum(map(len, self.took.values()))

    def seconds(self):
        return (self.ended or time.perf_counter()) - self.began


class Load:
    """What all callers share."""

    def __init__(self, server, pause):
        self.server, self.pause = server, pause
        self.figures = Figures()
        # Told in words; whatever is in them makes the test fail.
        self.lost, self.crossed, self.errors, self.gone = [], [], [], []
        self.interrupted = self.throttled = self.not_ready = 0
        self.kills, self.down, self.stop = 0, False, False
        self.restarted = self.first_answer = self.last_resumed = None

    def next_phase(self):
        self.figures.ended = time.perf_counter()
        self.figures, before = Figures(), self.figures
        return before

    def answered(self, connection):
        # One of the old server may still be on its way.
        if self.restarted and not self.first_answer and connection.start == self.server.starts:
            self.first_answer = time.perf_counter() - self.restarted


class Caller:
    LANGUAGES = {
        "python": {"set": "secret = {!r}", "get": "print(secret)", "print": "print({!r})",
                   "fail": "raise ValueError({!r})"},
        "javascript": {"set": "globalThis.secret = {!r}", "get": "console.log(secret)", "print": "console.log({!r})",
                       "fail": "throw new Error({!r})"},
    }

    def __init__(self, load, number, token, seed):
        self.load = load
        self.random = random.Random(f"{seed} {number}")
        self.name = f"caller-{number}"
        self.era = ("new", "session", "new", "plain")[number % 4]
        self.language = "javascript" if number % 11 == 5 else "python"
        self.words = self.LANGUAGES[self.language]
        self.connection = Connection(load.server)
        self.head = ("POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                     f"Accept: application/json, text/event-stream\r\nAuthorization: Bearer {token}\r\n").encode()
        if self.era == "new":
            self.head += b"MCP-Protocol-Version: %s\r\n" % NEWEST.encode()
        self.context = None
        # More than one while it is open whether an assignment has happened; empty before the first.
        self.secrets = set()
        self.begun, self.stopping = False, False
        self.kills, self.had, self.survived, self.failures = 0, False, False, 0

    def nonce(self):
        return f"{self.name}-{self.random.getrandbits(64):016x}"

    async def request(self, method, params, name=None):
        """The result, and how long it took."""
        load, number = self.load, next(NUMBERS)
        head, body = self.head, json.dumps(params)[:-1].encode()
        if self.era == "new":
            head += b"Mcp-Method: %s\r\n" % method.encode() + (b"Mcp-Name: %s\r\n" % name.encode() if name else b"")
            body += b'%s"_meta":%s' % (b"," if params else b"", META)
        body = b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}}' % (number, method.encode(), body)
        for _ in range(RETRIES):
            began = time.perf_counter()
            status, headers, answer = await self.connection.exchange(head, body)
            took = time.perf_counter() - began
            if status != 429:
                break
            load.throttled += 1
            await asyncio.sleep(float(headers.get("retry-after", 1)))
        if headers.get("content-type") == "text/event-stream":
            answer = of_stream(answer)
        try:
            message = json.loads(answer)
        except ValueError:
            raise Refused(f"{status}: {answer[:200]}") from None
        if status == 200 and message.get("id") != number:
            raise Foreign(f"asked as {number}, answered as {message.get('id')}")
        if status != 200 or "error" in message:
            raise Refused(f"{status}: {message.get('error')}")
        if method == "initialize":
            session = headers["mcp-session-id"]
            self.head += f"Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: {OLDER}\r\n".encode()
        load.answered(self.connection)
        return message["result"], took

    async def call(self, tool, kind=None, **arguments):
        for _ in range(RETRIES):
            result, took = await self.request("tools/call", {"name": tool, "arguments": arguments}, tool)
            if not result.get("isError"):
                break
            told = result["content"][0]["text"]
            if '"SERVER_NOT_READY"' not in told:
                raise Refused(told[:300])
            self.load.not_ready += 1
            await asyncio.sleep(0.1)
        else:
            raise Refused(told[:300])
        self.load.figures.took[kind or tool].append(took)
        return result["structuredContent"]

    def must(self, right, what, answer):
        if not right:
            raise Foreign(f"{what}: {str(answer)[:300]}")

    # What a caller does

    async def begin(self):
        if self.era == "session":
            params = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": CLIENT}
            await self.request("initialize", params)
            status, _, _ = await self.connection.exchange(
                self.head, b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
            if status != 202:
                raise Refused(f"{status}: notifications/initialized")
        await self.create("create_context, all at once")
        await self.assign()
        self.begun = True

    async def create(self, kind="create_context"):
        made = await self.call("create_context", kind, name=self.name, language=self.language)
        self.must(made["name"] == self.name and made["language"] == self.language, "create_context", made)
        self.context, self.secrets = made["context_id"], {""}

    async def run_code(self, kind, code):
        return await self.call("run_code", kind, context_id=self.context, code=code)

    async def assign(self):
        secret = self.nonce()
        self.secrets.add(secret)
        ran = await self.run_code("run_code: assign", self.words["set"].format(secret))
        self.must(ran["success"], "assignment", ran)
        self.secrets = {secret}

    async def read_back(self):
        ran = await self.run_code("run_code: read back", self.words["get"])
        self.must(ran["success"] and ran["stdout"].strip() in self.secrets, f"secret, not one of {self.secrets}", ran)
        self.secrets = {ran["stdout"].strip()}

    async def print_nonce(self):
        nonce = self.nonce()
        ran = await self.run_code("run_code: print", self.words["print"].format(nonce))
        self.must(ran["success"] and ran["stdout"] == f"{nonce}\n", f"output {nonce}", ran)

    async def fail(self):
        nonce = self.nonce()
        ran = await self.run_code("run_code: failing", self.words["fail"].format(nonce))
        self.must(not ran["success"] and nonce in ran["stderr"], f"failure {nonce}", ran)

    async def command(self):
        nonce = self.nonce()
        ran = await self.call("execute_command", command="echo", args=[nonce], session_id=self.context)
        right = ran["stdout"] == f"{nonce}\n" and ran["exit_code"] == 0 and ran["session_id"] == self.context
        self.must(right, f"echo {nonce}", ran)

    async def files(self):
        content = f"{self.nonce()}\n" * self.random.randrange(1, 200)
        path = f"file-{self.random.randrange(4)}.txt"
        put = await self.call("upload_file", context_id=self.context, path=path, content=content)
        self.must(put["size"] == len(content) and put["path"] == path, f"upload of {len(content)} bytes to {path}", put)
        got = await self.call("download_file", context_id=self.context, path=path)
        self.must(got["content"] == content, f"download of {content[:40]!r}", got)

    async def list_contexts(self):
        listed = await self.call("list_contexts")
        ids = [context["context_id"] for context in listed["contexts"]]
        self.must(ids == [self.context] and listed["total"] == 1, f"list, not only {self.context}", listed)

    async def get_sessions(self):
        listed = await self.call("get_sessions")
        ids = [session["session_id"] for session in listed["sessions"]]
        self.must(ids == [self.context] and listed["total"] == 1, f"list, not only {self.context}", listed)

    async def list_tools(self):
        listed, took = await self.request("tools/list", {})
        names = {tool["name"] for tool in listed["tools"]}
        self.must({"run_code", "execute_command"} <= names, "tools/list", names)
        self.load.figures.took["tools/list"].append(took)

    async def renew(self):
        self.stopping = True
        stopped = await self.call("stop_context", context_id=self.context)
        self.must(stopped["context_id"] == self.context, "stop_context", stopped)
        self.context, self.stopping = None, False
        await self.create()
        await self.assign()

    MIX = {print_nonce: 24, read_back: 16, assign: 12, command: 12, files: 12, list_contexts: 8, get_sessions: 8,
           fail: 8, list_tools: 4, renew: 1}

    # After the server was killed

    async def resume(self):
        """Finds its context again. What was under way when the server died may or may not have happened."""
        listed = (await self.call("list_contexts"))["contexts"]
        self.must(all(context["name"] == self.name for context in listed), "list after the restart", listed)
        ids = [context["context_id"] for context in listed]
        if self.context in ids and not self.stopping:
            self.must(len(ids) == 1, f"list after the restart, not only {self.context}", listed)
            ran = await self.run_code("run_code: read back", self.words["get"])
            self.survived = ran["stdout"].strip() in self.secrets
            if not self.survived:
                self.load.gone.append(f"{self.name}: {self.context} has not {self.secrets} but {str(ran)[:300]}")
            await self.assign()
        else:
            if self.context and not self.stopping:
                self.load.gone.append(f"{self.name}: {self.context} is not there, but {str(listed)[:300]}")
            for context in ids:
                await self.call("stop_context", context_id=context)
            self.context, self.stopping = None, False
            await self.create()
            await self.assign()
        self.load.last_resumed = time.perf_counter() - self.load.restarted

    def next_deed(self):
        if self.kills < self.load.kills:
            return Caller.resume
        return self.random.choices(list(Caller.MIX), Caller.MIX.values())[0]

    async def live(self, first=None):
        """Works until the load ends, or does one thing. What goes wrong is written down, and the caller goes on."""
        load = self.load
        while not load.stop and self.failures < MAX_FAILURES:
            deed, kills = first or self.next_deed(), load.kills
            where = f"{self.name} ({self.era}, {self.language}), {deed.__name__}"
            try:
                await deed(self)
                self.kills = kills
            except Unanswered as error:
                # The old server's connections end with it.
                if load.down or self.connection.start < load.server.starts:
                    load.interrupted += 1
                    continue
                load.lost.append(f"{where}: {error}")
                self.failures += 1
            except Foreign as error:
                load.crossed.append(f"{where}: {error}")
                self.failures += 1
            except (Refused, KeyError, TypeError) as error:
                load.errors.append(f"{where}: {type(error).__name__} {error}")
                self.failures += 1
            if first:
                return
            if load.pause:
                await asyncio.sleep(self.random.uniform(0, 2 * load.pause))


class Operator:
    """Reads the server's own figures."""

    def __init__(self, server, token):
        self.connection = Connection(server)
        self.head = f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n".encode()

    async def read(self):
        self.connection.close()
        status, _, page = await self.connection.exchange(self.head, b"")
        if status != 200:
            raise Unanswered(f"/metrics: {status} {page[:200]}")
        self.connection.close()
        lines = (line.rsplit(" ", 1) for line in page.decode().splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in lines}
