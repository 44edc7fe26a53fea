"""Sessions: modes, options, commands, and a log that survives everything."""

import asyncio
import json
import os

import acp

from editor import Editor
from rig import AcpTestCase, Model


class SessionsTestCase(AcpTestCase):
    def setUp(self):
        super().setUp()
        self.model = Model()
        self.addCleanup(self.model.close)

    def editor(self, **more):
        return Editor(self.home, self.project, self.model.environment("openai"), **more)


class Conduct(SessionsTestCase):
    async def test_what_is_offered_is_told(self):
        self.model.script("hello", "Hi.").start()
        async with self.editor() as editor:
            offered = editor.hello.agent_capabilities
            self.assertTrue(offered.load_session)
            self.assertTrue(offered.mcp_capabilities.http)
            self.assertTrue(offered.prompt_capabilities.image and offered.prompt_capabilities.embedded_context)
            self.assertFalse(offered.prompt_capabilities.audio)
            self.assertGreaterEqual(len(editor.hello.auth_methods), 1)
            session = await editor.begin()
            modes = {mode.id for mode in session.modes.available_modes}
            self.assertEqual((modes, session.modes.current_mode_id), ({"ask", "architect", "code"}, "ask"))
            options = {option.category: option for option in session.config_options}
            self.assertIn("model", options)
            self.assertIn("mode", options)
            commands = lambda: [name["name"] for update in editor.record.updates("available_commands_update")  # noqa: E731
                                for name in update["availableCommands"]]
            await editor.until(commands)
            self.assertLessEqual({"plan", "test", "web", "permissions", "reset", "model"}, set(commands()))

    async def test_requests_that_cannot_be_are_refused_and_never_echoed(self):
        self.model.script("hello", "Hi.").start()
        async with self.editor(check=False) as editor:
            refusals = {
                "session/new": {"cwd": "relative/path", "mcpServers": []},
                "session/prompt": {"sessionId": "nobody", "prompt": [{"type": "text", "text": "hello"}]},
                "session/load": {"sessionId": "../../etc/passwd", "cwd": str(self.project.path), "mcpServers": []},
                "session/set_mode": {"sessionId": "nobody", "modeId": "ask"},
            }
            for method, params in refusals.items():
                with self.assertRaises(acp.RequestError, msg=method) as refused:
                    await editor.within(editor.agent._conn.send_request(method, params))
                self.assertLess(refused.exception.code, -31999, method)
                self.assertGreater(len(str(refused.exception)), 10)
            secret = {"cwd": 7, "mcpServers": [{"name": "x", "command": "y", "args": [],
                                               "env": [{"name": "KEY", "value": "s3cret"}]}]}
            with self.assertRaises(acp.RequestError):
                await editor.within(editor.agent._conn.send_request("session/new", secret))
            with self.assertRaises(acp.RequestError) as unknown:
                await editor.within(editor.agent._conn.send_request("_belljar/unknown", {}))
            self.assertEqual(unknown.exception.code, -32601)
            await editor.agent._conn.send_notification("_belljar/unknown", {})
            received = json.dumps([message for sender, message in editor.record.messages if sender == "agent"])
            self.assertNotIn("s3cret", received)
            self.assertNotIn("s3cret", editor.log())
            await editor.begin()
            self.assertEqual(await editor.prompt("hello"), "end_turn")

    async def test_modes_decide_what_is_asked(self):
        write = ("write_file", {"path": "new.txt", "content": "x"})
        self.model.script("in code", [write], "Written.")
        self.model.script("in plans", [write], [("switch_to_code", {"plan": "1. write new.txt"})], "Planned.").start()
        async with self.editor(answers=["reject_once"]) as editor:
            await editor.begin(mode="code")
            self.assertEqual(await editor.prompt("in code"), "end_turn")
            self.assertEqual((self.project.read("new.txt"), editor.asked), ("x", []))
            os.unlink(self.project.path / "new.txt")
            option = next(option for option in editor.session.config_options if option.category == "mode")
            await editor.within(editor.agent.set_config_option(
                session_id=editor.id, config_id=option.id, value="architect"))
            self.assertEqual(await editor.prompt("in plans"), "end_turn")
            self.assertFalse((self.project.path / "new.txt").exists())
            self.assertEqual(len(editor.asked), 1, "the switch to code is asked")

    async def test_slash_commands(self):
        self.model.script("write it", [("write_file", {"path": "b.txt", "content": "x"})], "Done.")
        self.model.script("write again", [("write_file", {"path": "c.txt", "content": "x"})], "Done.").start()
        async with self.editor(answers=["allow_always"]) as editor:
            await editor.begin()
            self.assertEqual(await editor.prompt("write it"), "end_turn")
            said = len(editor.record.text())
            self.assertEqual(await editor.prompt("/permissions"), "end_turn")
            self.assertIn("write_file", editor.record.text()[said:])
            self.assertEqual(await editor.prompt("/permissions revoke all"), "end_turn")
            self.assertEqual(await editor.prompt("/reset"), "end_turn")
            self.assertEqual(await editor.prompt("/model"), "end_turn")
            self.assertIn("gpt-4o", editor.record.text())
            self.assertEqual(await editor.prompt("write again"), "end_turn")
            self.assertEqual(len(editor.asked), 2, "what was revoked is asked again")

    async def test_a_session_without_a_key_says_so(self):
        async with Editor(self.home, self.project, {}) as editor:
            await editor.begin()
            try:
                reason = await editor.prompt("hello")
                told = editor.record.text()
                self.assertIn(reason, ("end_turn", "refusal"))
            except acp.RequestError as refused:
                told = str(refused) + str(refused.data)
            self.assertIn("OPENAI_API_KEY", told)


class Log(SessionsTestCase):
    def spoken(self, editor, since=0):
        kinds = {"user_message_chunk": "user", "agent_message_chunk": "agent"}
        spoken = []
        for update in editor.record.updates()[since:]:
            if kind := kinds.get(update["sessionUpdate"]):
                if spoken and spoken[-1][0] == kind:
                    spoken[-1] = (kind, spoken[-1][1] + update["content"]["text"])
                else:
                    spoken.append((kind, update["content"]["text"]))
        return spoken

    async def test_a_session_is_listed_loaded_resumed_and_closed(self):
        self.model.script("remember me", [("run_command", {"command": "echo from the sandbox"})], "I shall.")
        self.model.script("who am I", "A friend.", "A friend, still.").start()
        async with self.editor() as editor:
            await editor.begin()
            self.assertEqual(await editor.prompt("remember me"), "end_turn")
            first = editor.id
        async with self.editor() as editor:
            listed = await editor.within(editor.agent.list_sessions(cwd=str(self.project.path)))
            self.assertEqual([session.session_id for session in listed.sessions], [first])
            elsewhere = await editor.within(editor.agent.list_sessions(cwd="/usr"))
            self.assertEqual(elsewhere.sessions, [])
            editor.id = first
            await editor.within(editor.agent.load_session(session_id=first, cwd=str(self.project.path), mcp_servers=[]))
            self.assertEqual(self.spoken(editor)[0], ("user", "remember me"))
            self.assertIn("I shall.", editor.record.text())
            call = next(iter(editor.record.calls().values()))
            self.assertEqual(call["status"], "completed")
            self.assertEqual(await editor.prompt("who am I"), "end_turn")
            await editor.within(editor.agent.close_session(session_id=first))
            with self.assertRaises(acp.RequestError):
                await editor.prompt("who am I")
        async with self.editor() as editor:
            editor.id = first
            await editor.within(editor.agent.resume_session(
                session_id=first, cwd=str(self.project.path), mcp_servers=[]))
            self.assertEqual(editor.record.updates("agent_message_chunk"), [], "resuming repeats nothing")
            self.assertEqual(await editor.prompt("who am I"), "end_turn")

    async def test_killed_in_the_middle_of_a_turn(self):
        self.model.script("work hard", ["First.", ("run_command", {"command": "echo step one"})],
                          ["Second.", ("run_command", {"command": "echo step two; sleep 1000"})], "Never.")
        self.model.script("go on", "Where were we?").start()
        async with self.editor(answers=["allow_always", "allow_always"], check=False) as editor:
            await editor.begin()
            first = editor.id
            turn = asyncio.ensure_future(editor.prompt("work hard"))
            running = lambda: [call.get("status") for call in editor.record.calls().values()][1:] == ["in_progress"]  # noqa: E731
            await editor.until(running)
            tree = editor.tree()
            editor.process.kill()
            await editor.process.wait()
            with self.assertRaises(BaseException):
                await turn
        self.assert_nothing_left(tree)
        async with self.editor() as editor:
            editor.id = first
            await editor.within(editor.agent.load_session(session_id=first, cwd=str(self.project.path), mcp_servers=[]))
            self.assertIn("First.", editor.record.text())
            calls = list(editor.record.calls().values())
            self.assertEqual(calls[0]["status"], "completed")
            self.assertIn("step one", json.dumps(calls[0]))
            # What was not finished is not told as finished.
            self.assertNotIn("completed", [call.get("status") for call in calls[1:]])
            self.assertEqual(await editor.prompt("go on"), "end_turn")
            self.assertIn("Where were we?", editor.record.text())
