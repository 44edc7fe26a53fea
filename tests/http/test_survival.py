"""The end of a server, sudden or in order, and what the next one finds."""

import signal
import time
import unittest
from http.client import HTTPException

from harness import Background, Home, Refused, Server, wait_until
from machine import kill, processes

TICK = "for i in $(seq 1 3000); do echo tick $i; sleep 0.1; done"


class Survival(unittest.TestCase):
    def setUp(self):
        self.home = Home()
        self.addCleanup(self.home.remove)
        self.servers = []
        self.addCleanup(self.end)

    def serve(self, *arguments, **options):
        server = Server(*arguments, home=self.home, **options)
        self.servers.append(server)
        return server

    def end(self):
        """Whatever a test did: one more server, told to stop, leaves nothing."""
        tree = self.home.tree()
        for server in self.servers:
            server.kill()
        if self.home.left(tree):
            last = Server(home=self.home, ready=False)
            self.assertEqual(last.stop(), 0, last.log())
        self.assert_nothing_left(tree)

    def assert_nothing_left(self, tree=()):
        gone = wait_until(lambda: not self.home.left(tree), 10)
        self.assertTrue(gone, self.home.left(tree))

    def test_killed_in_the_middle_of_runs(self):
        first = self.serve()
        client = first.client()
        contexts = [client.context(f"c{n}") for n in range(3)]
        for n, context in enumerate(contexts):
            client.value(context, f"x = {n}; open('kept.txt', 'w').write(str(x))")
        process = client.call("execute_command", session_id=contexts[0], command=TICK, background=True)["process_id"]
        code = "open('began', 'w')\nimport time\nfor _ in range(250): time.sleep(0.1)"
        running = [Background(client.run, context, code) for context in contexts]
        began = lambda: all(client.call("list_files", context_id=context)["total"] == 2 for context in contexts)
        self.assertTrue(wait_until(began, 10))
        first.kill()
        for thread in running:
            with self.assertRaises(OSError):
                thread.join()
        second = self.serve(ready=False)
        client = second.client()
        listed = {item["context_id"]: item["name"] for item in client.call("list_contexts")["contexts"]}
        self.assertEqual(listed, {context: f"c{n}" for n, context in enumerate(contexts)})
        for n, context in enumerate(contexts):
            self.assertEqual(client.value(context, "x"), str(n))
            self.assertEqual(client.call("download_file", context_id=context, path="kept.txt")["content"], str(n))
        follow = lambda offset=0: client.call("execute_command", session_id=contexts[0], process_id=process, wait=5,
                                              stdout_offset=offset)
        self.assertTrue(wait_until(lambda: follow()["stdout"].count("\n") > 20, 20), follow())
        followed = follow()
        self.assertEqual(followed["status"], "running")
        lines = followed["stdout"].splitlines()
        self.assertEqual(lines, [f"tick {n + 1}" for n in range(len(lines))], "nothing is lost or told twice")
        self.assertEqual(follow(followed["next_stdout_offset"])["stdout"].splitlines()[0], f"tick {len(lines) + 1}")
        # And again, at once.
        second.kill()
        client = self.serve(ready=False).client()
        self.assertEqual([client.value(context, "x") for context in contexts], ["0", "1", "2"])
        client.call("stop_context", context_id=contexts[2])
        self.assertEqual(client.call("list_contexts")["total"], 2)

    def test_what_was_promised_is_kept(self):
        """Killed while contexts are made and ended: those that a caller was told about are there, others are not."""
        made, ended = set(), set()
        for generation in range(2):
            server = self.serve(ready=False)

            def make(number):
                client = server.client()
                try:
                    for turn in range(1000):
                        context = client.context(f"{generation}-{number}-{turn}")
                        made.add(context)
                        client.value(context, f"x = {context!r}")
                        if turn % 2:
                            ended.add(context)  # from now on nobody may rely on it
                            client.call("stop_context", context_id=context)
                except (OSError, HTTPException, Refused):
                    pass

            makers = [Background(make, number) for number in range(3)]
            goal = len(made) + 12
            self.assertTrue(wait_until(lambda: len(made) >= goal, 30))
            server.kill()
            for maker in makers:
                maker.join()
        client = self.serve(ready=False).client()
        listed = {item["context_id"] for item in client.call("list_contexts")["contexts"]}
        self.assertLessEqual(made - ended, listed)
        for context in made - ended:
            ran = client.run(context, "x")
            self.assertTrue(ran.get("result") == repr(context) or ran["error"]["name"] == "NameError", ran)

    def test_sessions_of_the_old_era_go_on(self):
        first = self.serve()
        client = first.client(era="session")
        context = client.context()
        first.kill()
        client.server = self.serve(ready=False)
        self.assertEqual(client.value(context, "6 * 7"), "42")

    def test_the_current_sandbox_stays_the_current_one(self):
        first = self.serve()
        client = first.client()
        made = [client.call("sandbox_create")["sandbox_id"] for _ in range(4)]
        client.context("later")
        for language, code in (("python", "x = 1"), ("javascript", "let x = 2")):
            client.call("code_run", language=language, code=code)
        first.kill()
        client = self.serve().client()
        for language, value in (("python", "1"), ("javascript", "2")):
            self.assertEqual(client.call("code_run", language=language, code="x")["result"], value)
        for sandbox in reversed(made):
            self.assertEqual(client.call("sandbox_destroy")["sandbox_id"], sandbox)

    def test_callers_keep_what_is_theirs(self):
        ann, bob = self.home.token("add", "ann"), self.home.token("add", "bob")
        first = self.serve()
        context = first.client(ann).context("plans")
        first.kill()
        second = self.serve(ready=False)
        self.assertEqual(second.client(ann).value("plans", "1"), "1")
        with self.assertRaises(Refused) as caught:
            second.client(bob).run(context, "1")
        self.assertEqual(caught.exception.code, "CONTEXT_NOT_FOUND")

    def test_told_to_stop_it_finishes_what_runs_and_leaves_nothing(self):
        server = self.serve()
        for era in ("new", "plain", "session"):
            with self.subTest(era):
                if server.process.poll() is not None:
                    server = self.serve()
                client = server.client(era=era)
                context = client.context()
                running = Background(client.run, context, "open('began', 'w')\nimport time; time.sleep(1.5); print('finished')")
                self.assertTrue(wait_until(lambda: client.call("list_files", context_id=context)["total"], 10))
                tree = self.home.tree()
                self.assertEqual(server.stop(), 0, server.log())
                self.assertEqual(running.join()["stdout"], "finished\n")
                self.assert_nothing_left(tree)

    def test_while_it_stops_new_calls_are_turned_away(self):
        server = self.serve()
        client = server.client()
        context = client.context()
        with server.connect() as kept:
            running = Background(client.run, context, "open('began', 'w')\nimport time; time.sleep(2); print('finished')")
            self.assertTrue(wait_until(lambda: client.call("list_files", context_id=context)["total"], 10))
            kept.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n")
            server.process.send_signal(signal.SIGTERM)

            def turned_away():
                try:
                    return server.http("GET", "/health").status != 200
                except OSError:
                    return True
            self.assertTrue(wait_until(turned_away, 5))
        self.assertEqual(running.join()["stdout"], "finished\n")
        self.assertEqual(server.process.wait(20), 0)

    def test_a_second_signal_is_immediate(self):
        server = self.serve()
        client = server.client()
        context = client.context()
        running = Background(client.run, context, "open('began', 'w')\nimport time; time.sleep(25)")
        self.assertTrue(wait_until(lambda: client.call("list_files", context_id=context)["total"], 10))
        tree = self.home.tree()
        server.process.send_signal(signal.SIGTERM)
        self.assertTrue(wait_until(lambda: "stopping" in server.log(), 5))
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(10), 143)
        self.assertLess(time.monotonic() - began, 10)
        with self.assertRaises(OSError):
            running.join()
        self.assert_nothing_left(tree)

    def test_draining_leaves_the_sandboxes_to_the_next(self):
        first = self.serve("--drain")
        client = first.client()
        context = client.context("kept")
        client.value(context, "x = 'still here'; x")
        process = client.call("execute_command", session_id=context, command=TICK, background=True)["process_id"]
        running = Background(client.run, context, "open('began', 'w')\nimport time; time.sleep(1); y = 2; print('finished')")
        self.assertTrue(wait_until(lambda: client.call("list_files", context_id=context)["total"], 10))
        self.assertEqual(first.stop(), 0, first.log())
        self.assertEqual(running.join()["stdout"], "finished\n")
        self.assertTrue(self.home.jailers())
        second = self.serve("--drain", ready=False)
        client = second.client()
        self.assertEqual(client.value("kept", "(x, y)"), "('still here', 2)")
        self.assertEqual(client.call("execute_command", session_id=context, process_id=process)["status"], "running")
        self.assertEqual(second.stop(), 0)
        # Without the setting it ends them.
        third = self.serve(ready=False)
        self.assertEqual(third.client().value(context, "x"), "'still here'")
        tree = self.home.tree()
        self.assertEqual(third.stop(), 0)
        self.assert_nothing_left(tree)

    def test_a_successor_with_other_settings(self):
        allocate = "data = bytearray(700 << 20); len(data) >> 20"
        first = self.serve()
        old = first.client().context("old")
        first.client().value(old, "x = 1; x")
        first.kill()
        client = self.serve("--limits-memory", "512", "--contexts-max", "2").client()
        new = client.context("new")
        self.assertEqual(client.value(old, "x"), "1")
        self.assertEqual(client.value(old, allocate), "700", "the old one has what it was made with")
        ran = client.run(new, allocate)
        self.assertFalse(ran["success"], ran)
        with self.assertRaises(Refused) as caught:
            client.context("one too many")
        self.assertEqual(caught.exception.code, "LIMIT_EXCEEDED")

    def test_a_jailer_that_dies_is_replaced(self):
        server = self.serve()
        client = server.client()
        contexts = [client.context(name) for name in ("one", "two")]
        for context in contexts:
            client.value(context, "x = 1; open('kept.txt', 'w').write('1')")
        running = Background(client.run, contexts[0], "open('began', 'w')\nimport time; time.sleep(25)")
        self.assertTrue(wait_until(lambda: client.call("list_files", context_id=contexts[0])["total"] == 2, 30))
        tree = self.home.tree()
        for jailer in self.home.jailers():
            kill(jailer)
        ran = running.join()
        self.assertFalse(ran["success"])
        self.assertIn("variables, imports and files are gone", ran["notes"][0])
        with self.assertRaises(Refused) as caught:
            client.call("download_file", context_id=contexts[1], path="kept.txt")
        self.assertIn("files are gone", caught.exception.message)
        for context in contexts:
            ran = client.run(context, "y = 2; 'x' in globals()")
            self.assertEqual(ran["result"], "False")
            self.assertNotIn("notes", ran, "it is told once")
        self.assertEqual(client.value(client.context("three"), "6 * 7"), "42")
        self.assertTrue(wait_until(lambda: not any(pid in processes() for pid in tree), 30), "the old ones are gone")
        self.assertTrue(wait_until(lambda: len(list((self.home.path / "run").glob("*"))) == 1, 30), "and what they left")
        server.wait_healthy()
        second = server.kill() or self.serve(ready=False)
        self.assertEqual(second.client().value(contexts[0], "y"), "2", "the new one outlives its server too")

    def test_nobody_comes_back(self):
        server = self.serve("--keep", "1s")
        server.client().context()
        tree = self.home.tree()
        server.kill()
        gone = wait_until(lambda: not any(self.home.left(tree)), 20)
        self.assertTrue(gone or not self.home.jailers(), self.home.left(tree))


if __name__ == "__main__":
    unittest.main()
