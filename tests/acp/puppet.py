"""An ACP agent that does as it is told, on the Python SDK: a prompt is a JSON list of steps, each reported back as one
line of JSON. So `belljar acp-run` is tested with every request that an agent can make."""

import asyncio
import json
import os
import subprocess
import sys

import acp
from acp import schema


class Puppet:
    def __init__(self):
        self.cwd, self.servers, self.cancelled = None, [], asyncio.Event()

    def on_connect(self, client):
        self.client = client

    async def initialize(self, protocol_version, client_capabilities=None, client_info=None, **_):
        self.capabilities = client_capabilities
        if os.environ.get("PUPPET_VERSION"):
            protocol_version = int(os.environ["PUPPET_VERSION"])
        return schema.InitializeResponse(
            protocol_version=protocol_version, agent_info=schema.Implementation(name="puppet", version="1"))

    async def new_session(self, cwd, mcp_servers=None, **_):
        if os.environ.get("PUPPET_LOCKED"):
            raise acp.RequestError(-32000, "Authentication required")
        self.cwd, self.servers = cwd, mcp_servers or []
        modes = schema.SessionModeState(current_mode_id="slow", available_modes=[
            schema.SessionMode(id="slow", name="Slow"), schema.SessionMode(id="fast", name="Fast")])
        return schema.NewSessionResponse(session_id="puppet-1", modes=modes)

    async def set_session_mode(self, session_id, mode_id, **_):
        await self.say(session_id, {"mode": mode_id})
        return schema.SetSessionModeResponse()

    async def cancel(self, session_id, **_):
        self.cancelled.set()

    async def prompt(self, session_id, prompt, **_):
        reason = "end_turn"
        for step in json.loads(prompt[0].text):
            try:
                done = await getattr(self, "do_" + step.pop("do"))(session_id, **step)
            except acp.RequestError as error:
                done = {"error": str(error), "code": error.code}
            if isinstance(done, str):
                reason = done
            else:
                await self.say(session_id, done)
        return schema.PromptResponse(stop_reason=reason)

    async def say(self, session_id, value):
        text = value if isinstance(value, str) else json.dumps(value) + "\n"
        await self.client.session_update(session_id=session_id, update=acp.update_agent_message_text(text))

    def path(self, path):
        return path.replace("$CWD", self.cwd)

    # What a step may be.

    async def do_text(self, session_id, text):
        await self.say(session_id, text)
        return {}

    async def do_stop(self, session_id, reason):
        return reason

    async def do_capabilities(self, session_id):
        return {"capabilities": self.capabilities.model_dump(by_alias=True, exclude_none=True)}

    async def do_read(self, session_id, path, **more):
        return {"read": (await self.client.read_text_file(session_id=session_id, path=self.path(path), **more)).content}

    async def do_write(self, session_id, path, content):
        await self.client.write_text_file(session_id=session_id, path=self.path(path), content=content)
        return {"wrote": path}

    async def do_terminal(self, session_id, command, args=None, kill=False, **more):
        if "cwd" in more:
            more["cwd"] = self.path(more["cwd"])
        words = [self.path(word) for word in args or []]
        made = await self.client.create_terminal(session_id=session_id, command=self.path(command), args=words, **more)
        named = {"session_id": session_id, "terminal_id": made.terminal_id}
        if kill:
            await self.client.kill_terminal(**named)
        ended = await self.client.wait_for_terminal_exit(**named)
        shown = await self.client.terminal_output(**named)
        await self.client.release_terminal(**named)
        return {"output": shown.output, "truncated": shown.truncated, "exit_code": ended.exit_code, "signal": ended.signal}

    async def do_output_of(self, session_id, terminal_id):
        await self.client.terminal_output(session_id=session_id, terminal_id=terminal_id)

    async def do_ask(self, session_id, kind="edit", options=("allow_once", "allow_always", "reject_once")):
        offered = [schema.PermissionOption(option_id="id-" + kind, name=kind, kind=kind) for kind in options]
        call = schema.ToolCallUpdate(tool_call_id="call-1", title="Change \x1b[31mthe world", kind=kind)
        answer = await self.client.request_permission(session_id=session_id, tool_call=call, options=offered)
        return {"answer": answer.outcome.model_dump(by_alias=True, exclude_none=True)}

    async def do_plan(self, session_id):
        steps = [acp.plan_entry("look", status="completed"), acp.plan_entry("leap", status="pending")]
        await self.client.session_update(session_id=session_id, update=acp.update_plan(steps))
        return {}

    async def do_servers(self, session_id):
        return {"servers": [server.name for server in self.servers]}

    async def do_mcp(self, session_id, tool, arguments):
        """Calls a tool of the first server, with nothing but pipes."""
        server = self.servers[0]
        process = await asyncio.create_subprocess_exec(
            server.command, *server.args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 24,
            env={**os.environ, **{variable.name: variable.value for variable in server.env}})

        async def request(number, method, params):
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            process.stdin.write(json.dumps(message).encode() + b"\n")
            while True:
                answer = json.loads(await process.stdout.readline())
                if answer.get("id") == number:
                    return answer["result"]

        client = {"name": "puppet", "version": "1"}
        await request(1, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client})
        process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        result = await request(2, "tools/call", {"name": tool, "arguments": arguments})
        process.stdin.close()
        await process.wait()
        return {"mcp": result["structuredContent"]}

    async def do_child(self, session_id, *, detached=False):
        """A process that outlives the agent, if nobody ends it."""
        child = subprocess.Popen(["sleep", "1000"], start_new_session=detached)
        return {"pid": child.pid}

    async def do_wait(self, session_id):
        await self.say(session_id, {"waiting": os.getpid()})
        await self.cancelled.wait()
        return "cancelled"

    async def do_hang(self, session_id):
        await self.say(session_id, {"waiting": os.getpid()})
        await asyncio.Event().wait()

    async def do_die(self, session_id):
        print("I have had enough", file=sys.stderr, flush=True)
        os._exit(7)

    async def do_raw(self, session_id, text, times=1):
        os.set_blocking(1, True)
        for _ in range(times):
            left = text.encode()
            while left:
                left = left[os.write(1, left):]
        os.set_blocking(1, False)
        return {}

    async def do_strange_session(self, session_id):
        await self.client.read_text_file(session_id="another", path=self.path("$CWD/a.txt"))

    async def do_unknown(self, session_id):
        return await self.client.ext_method("puppet/unknown", {})


asyncio.run(acp.run_agent(Puppet()))
