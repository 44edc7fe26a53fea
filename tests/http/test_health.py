"""That /health says what is true: parts of the server are broken, and mend."""

import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from harness import Home, HttpTestCase, Server, templates, wait_until
from machine import command, kill


class Interpreter(HttpTestCase):
    def status(self):
        return self.server.http("GET", "/health", timeout=5).status

    def turns(self, status, seconds):
        return wait_until(lambda: self.status() == status, seconds)

    def assert_tells_why(self, word):
        answer = self.server.http("GET", "/health")
        health = answer.json()
        if answer.status == 503:
            self.assertEqual(health["status"], "unhealthy")
            self.assertIn(word, health["reason"])

    def test_a_zygote_that_is_killed_is_replaced_and_contexts_live_on(self):
        client = self.server.client()
        context = client.context()
        client.value(context, "x = 'kept'; x")
        self.assertTrue(self.turns(200, 20))
        before = self.home.zygote()
        kill(before)
        self.assertTrue(self.turns(503, 5), "it was not noticed")
        self.assert_tells_why("interpreter")
        self.assertTrue(self.turns(200, 30), self.server.log())
        self.assertNotEqual(self.home.zygote(), before)
        self.assertEqual(client.value(context, "x"), "'kept'")
        self.assertEqual(client.value(client.context("another"), "1 + 1"), "2")

    def test_a_zygote_that_stands_still(self):
        self.assertTrue(self.turns(200, 20))
        zygote = self.home.zygote()
        kill(zygote, signal.SIGSTOP)
        try:
            noticed = self.turns(503, 5)
            # However long it takes to look, the answer itself is there at once.
            began = time.monotonic()
            self.status()
            quick = time.monotonic() - began < 2
        finally:
            kill(zygote, signal.SIGCONT)
        self.assertTrue(noticed, "it was not noticed")
        self.assertTrue(quick)
        self.assertTrue(self.turns(200, 30), self.server.log())
        client = self.server.client()
        self.assertEqual(client.value(client.context("after"), "1 + 1"), "2")

    def test_a_sandbox_in_the_pool_that_dies_is_replaced(self):
        self.assertTrue(self.turns(200, 20))
        for pid in self.home.tree():
            if command(pid).startswith("belljar-guest"):
                kill(pid)
        client = self.server.client()
        self.assertEqual(client.value(client.context("after"), "1 + 1"), "2")
        self.assertTrue(self.turns(200, 20), self.server.log())


def may_mount():
    return subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True).returncode == 0


@unittest.skipUnless(shutil.which("unshare") and may_mount(), "mounting is not permitted here: a full disk is not tried")
class Disk(unittest.TestCase):
    def test_a_full_disk(self):
        home = Home()
        self.addCleanup(home.remove)
        state = home.path / "state"
        state.mkdir()
        # The mount is seen by the server and what it starts, and by us through somebody who lives there.
        keeper = subprocess.Popen(["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size=128m none {state} && echo ok && read end"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(keeper.communicate, "\n")
        self.assertEqual(keeper.stdout.readline(), "ok\n")
        inside = Path(f"/proc/{keeper.pid}/root{state}")
        (inside / "templates").symlink_to(templates())
        namespace = ("nsenter", f"--mount=/proc/{keeper.pid}/ns/mnt")
        server = Server(home=home, env={"BELLJAR_HOME": str(state)}, prefix=namespace)
        self.addCleanup(lambda: self.assertEqual(list((inside / "run").glob("*")), []))
        self.addCleanup(server.close)
        filler = inside / "filler"
        with open(filler, "wb") as file:
            try:
                while True:
                    file.write(b"x" * (1 << 20))
                    file.flush()
            except OSError:
                pass
        status = lambda: server.http("GET", "/health").status
        self.assertTrue(wait_until(lambda: status() == 503, 5), "it was not noticed")
        health = server.http("GET", "/health").json()
        self.assertIn("disk", health["reason"])
        self.assertNotEqual(health["checks"]["disk"]["status"], "healthy")
        filler.unlink()
        self.assertTrue(wait_until(lambda: status() == 200, 20), server.log())


if __name__ == "__main__":
    unittest.main()
