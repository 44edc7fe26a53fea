"""MCP servers that hang, die or lie, and models that talk nonsense: handled, bounded, told."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import acp

import servers
from editor import Editor
from rig import AcpTestCase, Model


class Servers(AcpTestCase):
    def setUp(self):
        super().setUp()
        self.model = Model()
        self.addCleanup(self.model.close)

    async def test_one_bad_server_spoils_nothing(self):
        self.model.script("shout it", [("good__shout", {"text": "hello"})], "Done.").start()
        bad = [servers.stdio("dead", "dead"), servers.stdio("mute", "mute")]
        async with Editor(self.home, self.project, self.model.environment("openai")) as editor:
            await editor.begin([*bad, servers.stdio("good")])
            self.assertEqual(await editor.prompt("shout it"), "end_turn")
            self.assertIn("HELLO", json.dumps(editor.record.calls()))
            tree = editor.tree()
        self.assert_nothing_left(tree)

    async def test_a_server_that_fails_in_a_call_is_told_to_the_model(self):
        call = lambda name: [(f"{name}__shout", {"text": "hello"})]  # noqa: E731
        self.model.script("call them", call("die"), call("lie"), "I see.").start()
        handed = [servers.stdio("die", "die"), servers.stdio("lie", "lie")]
        async with Editor(self.home, self.project, self.model.environment("openai")) as editor:
            await editor.begin(handed)
            self.assertEqual(await editor.prompt("call them"), "end_turn")
            self.assertIn("I see.", editor.record.text())
            self.assertEqual({call["status"] for call in editor.record.calls().values()}, {"failed"})

    async def test_a_call_that_hangs_is_cancelled(self):
        self.model.script("hang on", [("hang__shout", {"text": "hello"})], "Never.").start()
        async with Editor(self.home, self.project, self.model.environment("openai")) as editor:
            await editor.begin([servers.stdio("hang", "hang")])
            turn = asyncio.ensure_future(editor.prompt("hang on"))
            await editor.until(lambda: any(call.get("status") == "in_progress"
                                           for call in editor.record.calls().values()))
            await editor.agent.cancel(session_id=editor.id)
            self.assertEqual(await turn, "cancelled")
            tree = editor.tree()
        self.assert_nothing_left(tree)


class Nonsense(AcpTestCase):
    """A model with a mind of its own, in OpenAI's format."""

    def serve(self, respond):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(handler):
                body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                try:
                    respond(handler, body)
                except (BrokenPipeError, ConnectionResetError):
                    pass
                handler.close_connection = True

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return {"BELLJAR_LLM_PROVIDER": "openai", "BELLJAR_LLM_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1/",
                "BELLJAR_MODEL": "gpt-4o", "OPENAI_API_KEY": "test"}

    @staticmethod
    def stream(handler, *events, done=True):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        for event in events:
            text = event if isinstance(event, str) else json.dumps(event)
            handler.wfile.write(f"data: {text}\n\n".encode())
        if done:
            handler.wfile.write(b"data: [DONE]\n\n")
        handler.wfile.flush()

    @staticmethod
    def chunk(finish=None, **delta):
        return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o",
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    def tool_call(self, name, arguments, number="call_1"):
        call = {"index": 0, "id": number, "type": "function", "function": {"name": name, "arguments": arguments}}
        return self.chunk(tool_calls=[call]), self.chunk(finish="tool_calls")

    async def ends(self, environment, *arguments):
        """The stop reason of one prompt, or the error it ended with; the session lives on."""
        async with Editor(self.home, self.project, environment, arguments=arguments) as editor:
            await editor.begin()
            try:
                outcome = await editor.prompt("hello")
            except acp.RequestError as error:
                outcome = f"error {error.code}: {error} {error.data}"
            await editor.within(editor.agent.set_session_mode(session_id=editor.id, mode_id="code"))
            return outcome, editor.record

    async def test_unknown_tools_and_invalid_arguments_go_back_to_the_model(self):
        asked = []

        def respond(handler, body):
            asked.append(body)
            turns = [lambda: self.tool_call("no_such_tool", "{}"),
                     lambda: self.tool_call("read_file", '{"path": 7}', "call_2"),
                     lambda: self.tool_call("read_file", "{not json", "call_3"),
                     lambda: (self.chunk(content="I give up."), self.chunk(finish="stop"))]
            self.stream(handler, *turns[min(len(asked), 4) - 1]())

        outcome, record = await self.ends(self.serve(respond))
        self.assertEqual(outcome, "end_turn")
        self.assertIn("I give up.", record.text())
        self.assertEqual(len(asked), 4)
        told = [message for message in asked[-1]["messages"] if message["role"] == "tool"]
        self.assertEqual(len(told), 3, told)
        self.assertIn("no_such_tool", json.dumps(told[0]))

    async def test_streams_that_make_no_sense_end_the_turn_in_plain_words(self):
        for name, respond in {
            "garbage": lambda handler, body: self.stream(handler, "{not json", "also not"),
            "another shape": lambda handler, body: self.stream(handler, {"surprise": True}),
            "cut off": lambda handler, body: self.stream(handler, self.chunk(content="I was about to"), done=False),
            "an error": lambda handler, body: handler.send_error(500, "boom"),
        }.items():
            with self.subTest(name):
                outcome, record = await self.ends(self.serve(respond))
                self.assertTrue(outcome in ("end_turn", "refusal") or outcome.startswith("error"), outcome)

    async def test_a_model_that_never_stops_calling_is_stopped(self):
        count = []

        def respond(handler, body):
            count.append(1)
            self.stream(handler, *self.tool_call("search_files", '{"pattern": "x"}', f"call_{len(count)}"))

        outcome, _ = await self.ends(self.serve(respond), "--acp-max-requests", "5")
        self.assertEqual(outcome, "max_turn_requests")
        self.assertEqual(len(count), 5)

    async def test_a_model_that_never_stops_talking_can_be_cancelled(self):
        def respond(handler, body):
            self.stream(handler, self.chunk(content="bla "), done=False)
            while True:
                handler.wfile.write(f"data: {json.dumps(self.chunk(content='bla '))}\n\n".encode())
                handler.wfile.flush()
                threading.Event().wait(0.01)

        async with Editor(self.home, self.project, self.serve(respond)) as editor:
            await editor.begin()
            turn = asyncio.ensure_future(editor.prompt("hello"))
            await editor.until(lambda: len(editor.record.updates("agent_message_chunk")) > 5)
            await editor.agent.cancel(session_id=editor.id)
            self.assertEqual(await turn, "cancelled")

    async def test_the_length_limit_is_told(self):
        def respond(handler, body):
            self.stream(handler, self.chunk(content="It goes on and"), self.chunk(finish="length"))

        outcome, record = await self.ends(self.serve(respond))
        self.assertEqual(outcome, "max_tokens")
        self.assertIn("It goes on and", record.text())
