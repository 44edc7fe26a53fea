"""An editor on the Python SDK that drives `belljar acp`: answers permissions as told, may offer its own files, and
checks every message."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import acp
from acp import schema

from protocol import Record
from rig import BELLJAR, LIMIT, descendants


class Editor:
    """`async with Editor(home, project, model, "openai") as editor: …`

    `answers`: for each permission request the kind of the option to choose, "cancel" to cancel the turn instead, or
    "later" to leave it open until `released` is set. When they run out, everything is allowed once.
    """

    def __init__(self, home, project, environment, *, files=False, arguments=(), answers=(), check=True, prefix=()):
        self.home, self.project, self.environment = home, project, environment
        self.files, self.arguments, self.answers, self.check = files, arguments, list(answers), check
        self.prefix = prefix
        self.record, self.asked, self.buffers, self.saved = Record(), [], {}, {}
        self.arrived = asyncio.Event()
        self.released = asyncio.Event()
        self.directory = Path(tempfile.mkdtemp(prefix="belljar-editor-"))

    async def __aenter__(self):
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def start(self):
        self.stderr = open(self.directory / "stderr", "ab")
        self.process = None
        self.process = await asyncio.create_subprocess_exec(
            *self.prefix, BELLJAR, "acp", "--pool-size", "1", "--pool-languages", "python", *self.arguments,
            env=self.home.environment(self.environment), stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=self.stderr, limit=1 << 26)
        self.agent = acp.connect_to_agent(self, self.process.stdin, self.process.stdout, observers=[self.observe])
        files = schema.FileSystemCapabilities(read_text_file=self.files, write_text_file=self.files)
        self.hello = await self.within(self.agent.initialize(
            protocol_version=acp.PROTOCOL_VERSION,
            client_capabilities=schema.ClientCapabilities(fs=files, terminal=False),
            client_info=schema.Implementation(name="tests", version="1")))

    async def __aexit__(self, kind, error, _):
        await self.stop()
        if kind is None and self.check and self.record.problems:
            raise AssertionError("messages that are not ACP v1:\n" + "\n".join(self.record.problems[:10]))

    async def stop(self):
        """As an editor does: closes the pipe, and waits."""
        if getattr(self, "process", None) and self.process.returncode is None:
            if self.process.stdin:
                self.process.stdin.close()
            try:
                await asyncio.wait_for(self.process.wait(), LIMIT)
            except asyncio.TimeoutError:
                self.process.kill()
                raise
        if getattr(self, "agent", None):
            # An agent that was killed is not there to say goodbye to.
            with contextlib.suppress(ConnectionError):
                await self.agent.close()
            self.agent = None
        if not self.stderr.closed:
            self.stderr.close()
        self.last_log = self.log()
        shutil.rmtree(self.directory, ignore_errors=True)

    async def within(self, answer):
        try:
            return await asyncio.wait_for(answer, LIMIT)
        except asyncio.TimeoutError:
            raise AssertionError(f"no answer in time\n{self.record.messages[-5:]}\n{self.log()}") from None

    def observe(self, event):
        (self.record.received if event.direction.value == "incoming" else self.record.sent)(event.message)

    def log(self):
        path = self.directory / "stderr"
        return path.read_text(errors="replace") if path.exists() else getattr(self, "last_log", "")

    def tree(self):
        return {**descendants(self.process.pid), **self.home.tree()}

    # What tests do.

    async def begin(self, servers=(), mode=None):
        self.session = await self.within(self.agent.new_session(cwd=str(self.project.path), mcp_servers=list(servers)))
        self.id = self.session.session_id
        if mode:
            await self.within(self.agent.set_session_mode(session_id=self.id, mode_id=mode))
        return self.session

    async def prompt(self, text):
        """The stop reason."""
        answer = self.agent.prompt(session_id=self.id, prompt=[acp.text_block(text)])
        return (await self.within(answer)).stop_reason

    async def until(self, condition):
        """Waits for something that updates or requests of the agent bring about."""
        async def look():
            while not condition():
                self.arrived.clear()
                await self.arrived.wait()
        await self.within(look())

    # What the agent asks.

    async def session_update(self, session_id, update, **_):
        self.arrived.set()

    async def request_permission(self, session_id, tool_call, options, **_):
        self.asked.append(tool_call)
        self.arrived.set()
        answer = self.answers.pop(0) if self.answers else "allow_once"
        if answer == "later":
            await self.released.wait()
            answer = "cancelled"
        if answer == "cancel":
            await self.agent.cancel(session_id=session_id)
            answer = "cancelled"
        if answer == "cancelled":
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        chosen = next(option for option in options if option.kind == answer)
        return schema.RequestPermissionResponse(
            outcome=schema.AllowedOutcome(outcome="selected", option_id=chosen.option_id))

    async def read_text_file(self, session_id, path, line=None, limit=None, **_):
        name = os.path.relpath(path, self.project.path)
        try:
            text = self.buffers.get(name) or self.project.read(name)
        except FileNotFoundError:
            raise acp.RequestError.resource_not_found(path) from None
        lines = text.splitlines(keepends=True)
        start = (line or 1) - 1
        return schema.ReadTextFileResponse(content="".join(lines[start:start + limit if limit else None]))

    async def write_text_file(self, session_id, path, content, **_):
        name = os.path.relpath(path, self.project.path)
        self.saved[name] = content
        self.buffers[name] = content
        (self.project.path / name).write_text(content)
        return schema.WriteTextFileResponse()

    def on_connect(self, agent):
        pass
