"""Toolkits of one's own: files with mistakes are refused at their lines, commands get their parameters whole."""

import subprocess
import unittest

from harness import BELLJAR, Case, clients, directory

OWN = """
name = "own"
instructions = "Ask echo first."

[[tool]]
name = "show"
description = "Shows how it was called"
required = ["words"]
parameters.words = { type = "array", items = { type = "string" } }
parameters.text = { type = "string" }
parameters.loud = { type = "boolean", default = false }
[tool.command]
argv = ["python3", "-c", "import os, sys; print(sys.argv[1:], os.environ['SAID'], sys.stdin.read(), os.getcwd())",
        { if = "loud", argv = ["LOUD"] }, "--", "{words}"]
env = { SAID = "<{text}>" }
stdin = "{text}"
cwd = "/tmp"

[[tool]]
name = "wait"
description = "Waits"
command = { argv = ["sleep", "3600"] }
"""


class Own(Case):
    @classmethod
    def setUpClass(cls):
        import contextlib
        place = contextlib.ExitStack()
        cls.addClassCleanup(place.close)
        path = place.enter_context(directory()) / "own.toml"
        path.write_text(OWN)
        cls.arguments = ("--toolkit", str(path), "--toolkit", "cicd", "--pool-languages", "python")
        super().setUpClass()

    def test_its_tools_come_after_ours(self):
        tools = self.tools()
        self.assertIn("run_code", tools)
        self.assertEqual(tools[-8:-6], ["show", "wait"])
        self.assertIn("Ask echo first.", self.server.client.instructions or "")

    def test_a_parameter_is_a_whole_argument(self):
        words = ["$(id)", "; rm -rf /", "`id`", "a b", "--help", "x\ny", "'\""]
        told = self.call("show", words=words, text="$HOME")
        self.assertEqual(told["stdout"].strip(), f"{['--', *words]} <$HOME> $HOME /tmp", told)
        self.assertIn("LOUD", self.call("show", words=["a"], text="b", loud=True)["stdout"])

    def test_it_runs_where_the_files_are(self):
        session = self.call("execute_code", code="open('mine.txt', 'w').write('x')")["session_id"]
        told = self.call("show", words=["a"], text="b", session_id=session)
        self.assertEqual((told["success"], told["session_id"]), (True, session))
        self.refused("CONTEXT_NOT_FOUND", "show", words=["a"], session_id="ctx-00000000-0000-4000-8000-000000000000")

    def test_a_time_limit_and_no_sandbox_left(self):
        before = self.call("get_sessions")["total"]
        told = self.call("wait", timeout=1)
        self.assertEqual((told["success"], told["exit_code"]), (False, None))
        self.assertIn("the time limit", told["notes"][0])
        self.assertTrue(clients.wait_until(lambda: self.call("get_sessions")["total"] == before, 60))


class Wrong(unittest.TestCase):
    def start(self, *arguments):
        done = subprocess.run([BELLJAR, "mcp", *arguments], env=clients.environment(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_mistakes_are_told_at_start_with_their_lines(self):
        with directory() as place:
            path = place / "wrong.toml"
            path.write_text(OWN.replace("{words}\"]", "--all={words}\"]").replace('name = "wait"', 'name = "show"'))
            told = self.start("--toolkit", str(path))
        self.assertIn(f"{path}:14: \"--all={{words}}\": a parameter is a whole argument", told)
        self.assertIn(f"{path}:20: there is another tool \"show\"", told)

    def test_a_toolkit_that_is_not_there(self):
        self.assertIn("there is no toolkit \"nothing\"", self.start("--toolkit", "nothing"))
        self.assertIn("unknown toolset \"cicd\"", self.start("--toolsets", "cicd"))


if __name__ == "__main__":
    unittest.main()
