"""The commands that a person uses on a running server, and those that prepare a client."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from harness import BELLJAR, PATIENCE, Home, HttpTestCase, Server


def belljar(*arguments, env=None, stdin="", cwd=None):
    own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run([BELLJAR, *arguments], env={**own, **(env or {})}, input=stdin, capture_output=True, text=True,
                          timeout=60 * PATIENCE, cwd=cwd)


class Remote(HttpTestCase):
    def belljar(self, *arguments, env=None, stdin=""):
        here = {"BELLJAR_URL": f"http://127.0.0.1:{self.server.port}", "BELLJAR_HOME": str(self.home.path)}
        return belljar(*arguments, env={**here, **(env or {})}, stdin=stdin)

    def context(self, name):
        return self.server.client().context(name)

    def test_what_lives_is_listed(self):
        context = self.context("listed")
        self.assertIn(f"{context}  listed", self.belljar("ps").stdout)
        listed = json.loads(self.belljar("ps", "--json").stdout)
        self.assertIn(context, [entry["context_id"] for entry in listed])

    def test_a_command_runs_beside_the_agent_and_its_status_is_passed_on(self):
        context = self.context("exec")
        self.server.client().value(context, "open('seen', 'w').write('by both')")
        done = self.belljar("exec", "exec", "--", "sh", "-c", "cat seen; echo away >&2; exit 7")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (7, "by both", "away\n"))
        gone = self.belljar("exec", "nowhere", "true")
        self.assertEqual(gone.returncode, 1)
        self.assertIn("nowhere", gone.stderr)

    def test_files_go_in_and_come_out_unchanged(self):
        self.context("files")
        content = bytes(range(256)) * 100
        with tempfile.TemporaryDirectory() as directory:
            source, target = Path(directory, "a.bin"), Path(directory, "b.bin")
            source.write_bytes(content)
            self.assertEqual(self.belljar("cp", str(source), "files:deep/").returncode, 0)
            self.assertEqual(self.belljar("cp", "files:deep/a.bin", str(target)).returncode, 0)
            self.assertEqual(target.read_bytes(), content)
            self.assertEqual(self.belljar("cp", "files:/workspace/deep/a.bin", directory).returncode, 0)
            for wrong in (("a", "b"), ("files:a", "files:b"), ("files:../../etc/shadow", directory), ("files:none", directory)):
                done = self.belljar("cp", *wrong)
                self.assertEqual((done.returncode, done.stdout), (1, ""), wrong)

    def test_a_prompt_in_a_context_shares_its_variables(self):
        context = self.context("typed")
        self.server.client().value(context, "x = 20")
        done = self.belljar("shell", "typed", stdin="for i in range(2):\n    print(i)\n\nx + 1\n1 / 0\ny = 5\n")
        self.assertEqual((done.returncode, done.stdout), (0, "0\n1\n21\n"))
        self.assertIn("ZeroDivisionError", done.stderr)
        self.assertEqual(self.server.client().value(context, "y"), "5")

    def test_a_prompt_without_a_context_makes_one_and_stops_it(self):
        done = self.belljar("shell", "-l", "javascript", stdin="[1, 2].map(n => {\nreturn n * 2\n})\n")
        self.assertEqual((done.returncode, done.stdout), (0, "[ 2, 4 ]\n"), done.stderr)
        self.assertNotIn("shell", self.belljar("ps").stdout)

    def test_contexts_are_stopped_and_the_unknown_is_told(self):
        context = self.context("stopped")
        done = self.belljar("stop", "unknown", context)
        self.assertEqual((done.returncode, done.stdout), (1, f"stopped {context}\n"))
        self.assertIn("unknown", done.stderr)
        self.assertNotIn(context, self.belljar("ps").stdout)

    def test_a_server_that_is_not_there_is_told_with_the_remedy(self):
        done = self.belljar("ps", env={"BELLJAR_URL": "http://127.0.0.1:1"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("belljar serve", done.stderr)
        self.assertIn("not the address", self.belljar("ps", "--url", "nonsense").stderr)


class Tokens(unittest.TestCase):
    def test_a_token_opens_the_door_and_is_asked_for_by_name(self):
        home = Home()
        self.addCleanup(home.remove)
        token = home.token("add", "alice")
        with Server(home=home) as server:
            url = {"BELLJAR_URL": f"http://127.0.0.1:{server.port}"}
            refused = belljar("ps", env=url)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("BELLJAR_TOKEN", refused.stderr)
            self.assertEqual(belljar("ps", "--json", env={**url, "BELLJAR_TOKEN": token}).stdout, "[]\n")


class Install(unittest.TestCase):
    def test_the_change_is_shown_then_written_once(self):
        with tempfile.TemporaryDirectory() as home:
            settings = Path(home, ".cursor/mcp.json")
            env = {"HOME": home}
            shown = belljar("install", "cursor", "--dry-run", env=env)
            self.assertIn('+     "belljar": {', shown.stdout)
            self.assertFalse(settings.exists())
            nobody = belljar("install", "cursor", env=env)
            self.assertEqual(nobody.returncode, 1)
            self.assertFalse(settings.exists())
            self.assertEqual(belljar("install", "cursor", "--yes", env=env).returncode, 0)
            server = json.loads(settings.read_text())["mcpServers"]["belljar"]
            self.assertEqual(server, {"command": str(Path(BELLJAR).resolve()), "args": ["mcp"]})
            self.assertIn("already", belljar("install", "cursor", "--yes", env=env).stderr)
            self.assertIn("known: claude", belljar("install", "emacs", env=env).stderr)

    def test_a_project_gets_its_own(self):
        with tempfile.TemporaryDirectory() as project:
            self.assertEqual(belljar("install", "claude", "--project", "--yes", cwd=project).returncode, 0)
            self.assertIn("belljar", json.loads(Path(project, ".mcp.json").read_text())["mcpServers"])


if __name__ == "__main__":
    unittest.main()
