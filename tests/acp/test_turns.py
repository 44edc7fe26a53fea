"""A task of several turns, with the model in both wire formats: reads, edits, runs tests, calls MCP tools over stdio and
HTTP, with permissions allowed once, always, rejected and cancelled."""

import asyncio
import json
import urllib.request

import acp

import servers
from editor import Editor
from rig import AcpTestCase, Model

CALC = "def add(a, b):\n    return a - b\n"
TEST = "import unittest\nfrom calc import add\n\nclass T(unittest.TestCase):\n" \
       "    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n"
TESTS = ("run_command", {"command": "python3 -m unittest -v test_calc 2>&1"})


class TurnsTestCase(AcpTestCase):
    def setUp(self):
        super().setUp()
        self.project.write("calc.py", CALC)
        self.project.write("test_calc.py", TEST)
        self.project.give_away()
        self.model = Model()
        self.addCleanup(self.model.close)

    def editor(self, provider="openai", **more):
        return Editor(self.home, self.project, self.model.environment(provider), **more)

    def requests(self):
        """What the model was asked, oldest first."""
        with urllib.request.urlopen(self.model.url + "/__aimock/journal", timeout=30) as answer:
            return [entry for entry in json.load(answer) if entry["method"] == "POST"]


class Task(TurnsTestCase):
    def script(self):
        edit = ("edit_file", {"path": "calc.py", "old_text": "a - b", "new_text": "a + b"})
        self.model.script(
            "fix the calculator",
            ["Let me look.", ("read_file", {"path": "calc.py"}), ("search_files", {"pattern": "def add"})],
            [("update_plan", {"entries": [{"content": "fix add", "status": "in_progress"}]}), edit],
            [TESTS],
            [("near__shout", {"text": "it works"})],
            [("far__count", {"text": "one two three"})],
            "All is **well**.",
        ).script(
            "once more", [TESTS], [("write_file", {"path": "notes.txt", "content": "done"})], "As you wish.",
        ).script(
            "a last thing", [("run_code", {"code": "print(6 * 7)"})], "Never said.",
        ).script("still there", "I am.").start()

    async def test_openai(self):
        await self.run_task("openai")

    async def test_anthropic(self):
        await self.run_task("anthropic")

    async def run_task(self, provider):
        self.script()
        http = servers.Http()
        self.addCleanup(http.close)
        # The edit, the tests, two tools of servers; then a file; then code.
        answers = ["allow_once", "allow_always", "allow_once", "allow_once", "reject_once", "cancel"]
        async with self.editor(provider, answers=answers) as editor:
            await editor.begin([servers.stdio("near"), http.server("far")])
            self.assertEqual(await editor.prompt("Please fix the calculator"), "end_turn", editor.record.messages)
            self.assertEqual(self.project.read("calc.py"), CALC.replace("a - b", "a + b"))
            text = editor.record.text()
            self.assertIn("Let me look.", text)
            self.assertIn("All is **well**.", text)
            calls = list(editor.record.calls().values())
            self.assertEqual({call["status"] for call in calls}, {"completed"}, calls)
            shown = json.dumps(calls)
            for expected in ("return a - b", "test_add", "IT WORKS"):
                self.assertIn(expected, shown)
            kinds = [call.get("kind") for call in calls]
            for kind in ("read", "search", "edit", "execute"):
                self.assertIn(kind, kinds)
            edit = next(call for call in calls if call.get("kind") == "edit")
            diff = next(part for part in edit["content"] if part["type"] == "diff")
            self.assertEqual((diff["path"], diff["oldText"], diff["newText"]),
                             (str(self.project.path / "calc.py"), CALC, CALC.replace("a - b", "a + b")))
            self.assertEqual(edit["locations"][0]["path"], str(self.project.path / "calc.py"))
            self.assertEqual(editor.record.updates("plan")[-1]["entries"][0]["content"], "fix add")
            self.assertEqual(len(editor.asked), 4, editor.asked)

            self.assertEqual(await editor.prompt("once more"), "end_turn")
            self.assertEqual(len(editor.asked), 5, "the tests were allowed for always")
            self.assertFalse((self.project.path / "notes.txt").exists())
            rejected = [call for call in editor.record.calls().values() if call["status"] == "failed"]
            self.assertEqual(len(rejected), 1, rejected)
            self.assertIn("As you wish.", editor.record.text())

            self.assertEqual(await editor.prompt("a last thing"), "cancelled")
            self.assertEqual(len(editor.asked), 6)
            self.assertNotIn("Never said.", editor.record.text())
            # The session goes on.
            self.assertEqual(await editor.prompt("still there?"), "end_turn")
            tree = editor.tree()
            asked = json.dumps(self.requests())
        for told in ("IT WORKS", "return a - b", "test_add (test_calc.T.test_add) ... ok"):
            self.assertIn(told, asked, "the model is told")
        self.assert_nothing_left(tree)


class Files(TurnsTestCase):
    async def test_what_is_not_saved_counts(self):
        edit = ("edit_file", {"path": "calc.py", "old_text": "a * b", "new_text": "a + b"})
        self.model.script("fix it", [("read_file", {"path": "calc.py"})], [edit], "Done.").start()
        async with self.editor(files=True) as editor:
            editor.buffers["calc.py"] = CALC.replace("a - b", "a * b")
            await editor.begin()
            self.assertEqual(await editor.prompt("fix it"), "end_turn")
            self.assertEqual(editor.saved, {"calc.py": CALC.replace("a - b", "a + b")})
        self.assertIn("a * b", json.dumps(self.requests()))

    async def test_what_is_attached_to_a_prompt_reaches_the_model(self):
        self.model.script("look at this", "I see.").start()
        pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        async with self.editor() as editor:
            await editor.begin()
            answer = await editor.within(editor.agent.prompt(session_id=editor.id, prompt=[
                acp.text_block("look at this"), acp.image_block(pixel, "image/png"),
                acp.resource_block(acp.embedded_text_resource("file:///unsaved.py", "print('not saved yet')"))]))
            self.assertEqual(answer.stop_reason, "end_turn")
            with self.assertRaises(acp.RequestError) as refused:
                await editor.within(editor.agent.prompt(session_id=editor.id, prompt=[acp.audio_block("AAAA", "audio/wav")]))
            self.assertEqual(refused.exception.code, -32602)
        asked = json.dumps(self.requests()[-1]["body"])
        for part in (pixel, "unsaved.py", "print('not saved yet')"):
            self.assertIn(part, asked)

    async def test_the_project_is_all_there_is(self):
        (self.project.path / "link").symlink_to("/etc")
        outside = [("read_file", {"path": path}) for path in ("/etc/hostname", "../x", "link/hostname")]
        write = ("write_file", {"path": "link/oops", "content": "x"})
        self.model.script("look around", outside, [write], "No way.").start()
        async with self.editor() as editor:
            await editor.begin()
            self.assertEqual(await editor.prompt("look around"), "end_turn")
            calls = list(editor.record.calls().values())
            self.assertEqual([call["status"] for call in calls], ["failed"] * 4, calls)


class Cancelling(TurnsTestCase):
    async def cancelled(self, editor, prompt, when):
        turn = asyncio.ensure_future(editor.prompt(prompt))
        await editor.until(when)
        await editor.agent.cancel(session_id=editor.id)
        editor.released.set()
        self.assertEqual(await turn, "cancelled")

    async def test_a_running_command_and_a_pending_question_are_cancelled(self):
        self.model.script("wait long", [("run_command", {"command": "echo begun; sleep 1000"})], "Never.")
        self.model.script("ask me", [("run_command", {"command": "echo asked"})], "Never.")
        self.model.script("and now", "Here I am.").start()
        async with self.editor(answers=["allow_once", "later"]) as editor:
            await editor.begin()
            shown = lambda: "begun" in json.dumps([c.get("content") for c in editor.record.calls().values()] +  # noqa: E731
                                                  [c.get("_meta") for c in editor.record.updates()])
            await self.cancelled(editor, "wait long", lambda: len(editor.asked) == 1 and (
                shown() or any(c.get("status") == "in_progress" for c in editor.record.calls().values())))
            await self.cancelled(editor, "ask me", lambda: len(editor.asked) == 2)
            self.assertEqual(await editor.prompt("and now"), "end_turn")
            self.assertIn("Here I am.", editor.record.text())
            self.assertNotIn("Never", editor.record.text())

    async def test_one_prompt_at_a_time(self):
        self.model.script("ask me", [("run_command", {"command": "true"})], "Done.").start()
        async with self.editor(answers=["later"]) as editor:
            await editor.begin()
            turn = asyncio.ensure_future(editor.prompt("ask me"))
            await editor.until(lambda: editor.asked)
            with self.assertRaises(acp.RequestError) as refused:
                await editor.prompt("ask me too")
            self.assertIn(refused.exception.code, (-32600, -32602, -32000), refused.exception)
            await editor.agent.cancel(session_id=editor.id)
            editor.released.set()
            self.assertEqual(await turn, "cancelled")
