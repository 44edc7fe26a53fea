"""A server that nobody vouches for, in a sandbox: it works, and sees nothing of the host but what it was given."""

import os
import tempfile
import unittest
from pathlib import Path

from common import SERVERS, PATIENCE, call, hub, names, text, wait_until
from harness import Footprint


class Sandboxed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="belljar-files-")
        cls.addClassCleanup(directory.cleanup)
        cls.data = Path(directory.name, "data")
        cls.data.mkdir()
        (cls.data / "note.txt").write_text("written on the host")
        if os.geteuid() == 0:
            os.chown(cls.data, 1000, 1000)
        packages = SERVERS.parent
        cls.server = hub(cls, {
            "files": {
                "command": "node",
                "args": ["/volumes/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js", "/volumes/data"],
                "sandbox": True,
                "mounts": {str(packages): "ro", str(cls.data): "rw"},
            },
            "python": {
                "command": "python3",
                "args": ["-c", Path(__file__).with_name("looking_server.py").read_text()],
                "env": {"LOOK": "${BELLJAR_LOOK}"},
                "sandbox": True,
                "network": "none",
            },
        }, LOOK="sesame-open")
        names(cls.server)

    def test_it_reads_and_writes_what_it_was_given(self):
        read = text(call(self.server, "files__read_text_file", path="/volumes/data/note.txt"))
        self.assertIn("written on the host", read)
        result = call(self.server, "files__write_file", path="/volumes/data/new.txt", content="written inside")
        self.assertFalse(result.get("isError"), result)
        self.assertEqual((self.data / "new.txt").read_text(), "written inside")

    def test_it_sees_nothing_else(self):
        def look(path):
            return text(call(self.server, "python__look", path=path))

        self.assertEqual(look("/volumes"), "[]", "a directory that is another server's")
        self.assertIn("FileNotFoundError", look(str(self.data)))
        self.assertIn("Error", look("/root"))
        self.assertEqual(text(call(self.server, "python__environment", path="LOOK")), "sesame-open")
        self.assertIn("Error", text(call(self.server, "python__connect", path="1.1.1.1")))
        self.assertIn("Error", text(call(self.server, "python__connect", path="127.0.0.1")))

    def test_a_message_larger_than_a_pipe_comes_through(self):
        content = "x" * 500_000
        echoed = text(call(self.server, "python__echo", path=content))
        self.assertEqual(len(echoed), len(content))


class Gone(unittest.TestCase):
    def test_the_sandbox_ends_when_we_are_killed(self):
        server = hub(self, {"python": {
            "command": "python3", "args": ["-c", Path(__file__).with_name("looking_server.py").read_text()],
            "sandbox": True,
        }})
        self.assertIn("python__look", names(server))
        footprint = Footprint(server.pid)
        self.assertTrue(footprint.alive())
        server.process.kill()
        self.assertTrue(wait_until(lambda: not footprint.alive(), 60 * PATIENCE), footprint.alive())
