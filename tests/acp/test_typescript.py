"""The same agent, driven by the TypeScript SDK."""

import json
import subprocess

import servers
from protocol import Record
from rig import BELLJAR, LIMIT, NODE, NODE_DIR, AcpTestCase, Model

EDIT = ("edit_file", {"path": "a.txt", "old_text": "two", "new_text": "2"})


class TypeScript(AcpTestCase):
    def test_openai(self):
        self.drive("openai")

    def test_anthropic(self):
        self.drive("anthropic")

    def drive(self, provider):
        model = Model()
        self.addCleanup(model.close)
        model.script("change it", [("read_file", {"path": "a.txt"})], [EDIT],
                     [("run_command", {"command": "cat a.txt"})], [("near__shout", {"text": "bye"})],
                     [("far__count", {"text": "one two three four"})], "Changed.")
        model.script("undo it", [("write_file", {"path": "a.txt", "content": "gone"})], "Kept.").start()
        near, far = servers.stdio("near"), servers.Http()
        self.addCleanup(far.close)
        task = {
            "command": [BELLJAR, "acp", "--pool-size", "1", "--pool-languages", "python"],
            "env": self.home.environment(model.environment(provider)),
            "cwd": str(self.project.path),
            "mcpServers": [{"name": near.name, "command": near.command, "args": near.args, "env": []},
                           {"type": "http", "name": "far", "url": far.url, "headers": []}],
            "prompts": ["change it", "undo it"],
            "answers": ["allow_once", "allow_always", "allow_once", "allow_always", "reject_once"],
        }
        done = subprocess.run([NODE, NODE_DIR / "client.mjs", json.dumps(task)], capture_output=True, text=True,
                              timeout=LIMIT, cwd=NODE_DIR)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(done.returncode, 0, (done.stderr, lines[-5:]))
        record = Record()
        for line in lines[:-1]:
            if "sender" in line:
                (record.sent if line["sender"] == "client" else record.received)(line["message"])
        self.assertEqual(record.problems, [])
        saw = next(line["saw"] for line in lines if "saw" in line)
        self.assertEqual((saw["reasons"], saw["mode"], saw["listed"]), (["end_turn", "end_turn"], "ask", 1), saw)
        self.assertEqual(len(saw["asked"]), 5, saw)
        self.assertEqual(self.project.read("a.txt"), "one\n2\nthree\n")
        self.assertIn("Changed.Kept.", record.text().replace("\n", ""))
        self.assertIn("BYE", json.dumps(record.calls()))
        self.assert_nothing_left({})
