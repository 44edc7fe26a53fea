"""Sandboxes of images outlive their server like all others, and leave nothing when it stops."""

import importlib.util
import subprocess
import sys
import unittest
from pathlib import Path

from making import layer, shell

HTTP = Path(__file__).resolve().parents[1] / "http"
# It has the name of the one that speaks over pipes.
sys.path.append(str(HTTP))
spec = importlib.util.spec_from_file_location("http_harness", HTTP / "harness.py")
door = importlib.util.module_from_spec(spec)
spec.loader.exec_module(door)


class Survival(unittest.TestCase):
    def setUp(self):
        self.home = door.Home()
        self.addCleanup(self.home.remove)
        self.servers = []
        self.addCleanup(lambda: [server.kill() for server in self.servers])
        (self.home.path / "shell.tar").write_bytes(layer(shell()))
        self.template("add", "shell", "--tar", str(self.home.path / "shell.tar"))

    def template(self, *arguments):
        subprocess.run([door.BELLJAR, "template", *arguments], env=self.home.environment(), check=True, capture_output=True,
                       timeout=120 * door.PATIENCE)

    def serve(self):
        self.servers.append(door.Server(home=self.home))
        return self.servers[-1]

    def test_a_killed_server_is_followed_by_one_that_goes_on(self):
        first = self.serve()
        made = first.client().call("execute_command", command="echo kept > note; cat /etc/who", template="shell", limit=120)
        self.assertEqual(made["stdout"], "the image\n")
        tree = self.home.tree()
        first.kill()
        second = self.serve()
        client = second.client()
        again = client.call("execute_command", command="cat note /etc/who", session_id=made["session_id"])
        self.assertEqual(again["stdout"], "kept\nthe image\n")
        # Another one of the same image, from a jailer of the second server's own.
        other = client.call("execute_command", command="ls", template="shell", limit=120)
        self.assertEqual(other["stdout"], "")
        sessions = {one["session_id"]: one["template"] for one in client.call("get_sessions")["sessions"]}
        self.assertEqual(sessions, {made["session_id"]: "shell", other["session_id"]: "shell"})
        tree |= self.home.tree()
        self.assertEqual(second.stop(), 0, second.log())
        self.assertTrue(door.wait_until(lambda: not self.home.left(tree), 30), self.home.left(tree))
        self.template("remove", "shell")


if __name__ == "__main__":
    unittest.main()
