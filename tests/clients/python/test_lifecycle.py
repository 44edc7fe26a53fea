"""Starts, ends and crashes: whatever happens to the server, nothing of it stays behind. Raw standard input and output,
no client library in between."""

import json
import os
import queue
import random
import signal
import tempfile
import threading
import time
import unittest
from pathlib import Path

from harness import LEGACY, META, MODERN, PATIENCE, Failed, Footprint, Raw, Refused, cgroups, descendants, ends, kill, wait_until

PROMPT = 2 * PATIENCE  # seconds in which everything must be gone
SEED = int(os.environ.get("BELLJAR_TEST_SEED") or time.time())

# A context hard to get rid of: children, a daemon in a session of its own, ignored signals.
CLINGING = """
import os, signal, subprocess, time
children = [subprocess.Popen(['sleep', '1000']) for _ in range(3)]
if os.fork() == 0:
    os.setsid()
    for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(s, signal.SIG_IGN)
    while True:
        time.sleep(1)
"""


def memory(pid, field="VmRSS"):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class RawTestCase(unittest.TestCase):
    def serve(self, *arguments, **settings):
        server = Raw(*arguments, **settings)
        self.addCleanup(server.close)
        self.addCleanup(lambda: self.assertEqual(server.noise, [], "stdout is for JSON-RPC messages alone"))
        return server

    def busy(self, **settings):
        """A server with Python and JavaScript at work."""
        server = self.serve(**settings)
        clinging, running, js = server.context(name="a"), server.context(name="b"), server.context("javascript", "c")
        self.assertTrue(server.run(clinging, CLINGING)["success"])
        server.run(running, "mark = 1")
        server.start_call("run_code", context_id=running, code="while True: pass", timeout=600)
        server.start_call("run_code", context_id=js, code="while (true) {}", timeout=600)
        time.sleep(0.3)
        footprint = Footprint(server.pid)
        self.assertGreaterEqual(len(footprint.processes), 9, footprint.processes)
        self.assertEqual(len(footprint.instances), 1, footprint.instances)
        return server, footprint

    def assert_nothing_left(self, footprint, seconds=PROMPT):
        wait_until(lambda: not footprint.left(), seconds)
        self.assertEqual(footprint.left(), [])


class Ends(RawTestCase):
    def test_end_of_input(self):
        server, footprint = self.busy()
        server.process.stdin.close()
        self.assertTrue(ends(server.process, PROMPT), server.stderr())
        self.assertEqual(server.process.returncode, 0, server.stderr())
        self.assert_nothing_left(footprint)

    def test_end_of_input_when_nothing_was_said(self):
        server = self.serve(start=False)
        self.assertLess(server.hang_up(), PROMPT)
        self.assertEqual(server.process.returncode, 0, server.stderr())

    def test_end_of_input_while_starting(self):
        for wait in (0, 0.02, 0.1, 0.3, 0.6):
            server = self.serve()
            time.sleep(wait)
            footprint = Footprint(server.pid)
            self.assertLess(server.hang_up(), PROMPT)
            self.assert_nothing_left(footprint)

    def test_answers_that_are_ready_are_still_given(self):
        server = self.serve()
        context = server.context()
        _, answer = server.start_call("run_code", context_id=context, code="print('in time')")
        server.process.stdin.close()
        try:
            told = server.finish_call(answer, 5)
        except (Failed, Refused, EOFError):
            return  # the end came first
        # Or in the middle: then it was interrupted, perhaps before it began.
        self.assertEqual(told["stdout"] if told["success"] else "in time\n", "in time\n", told)

    def test_a_server_that_keeps_its_files_to_itself(self):
        was = os.umask(0o077)
        try:
            server = self.serve(start=False)
        finally:
            os.umask(was)
        server.request("server/discover", {})
        self.assertEqual(server.run(server.context(), "!ls /opt/belljar /etc/ssl/certs > /dev/null; echo $?")["stdout"], "0\n")

    def test_terminate(self):
        server, footprint = self.busy()
        server.process.terminate()
        self.assertTrue(ends(server.process, PROMPT), server.stderr())
        self.assert_nothing_left(footprint)

    def test_interrupt(self):
        server, footprint = self.busy()
        server.process.send_signal(signal.SIGINT)
        self.assertTrue(ends(server.process, PROMPT), server.stderr())
        self.assert_nothing_left(footprint)

    def test_hang_up_signal(self):
        server, footprint = self.busy()
        server.process.send_signal(signal.SIGHUP)
        self.assertTrue(ends(server.process, PROMPT), server.stderr())
        self.assert_nothing_left(footprint)

    def test_kill(self):
        server, footprint = self.busy()
        server.process.kill()
        self.assertTrue(ends(server.process, PROMPT))
        self.assert_nothing_left(footprint)

    def test_kill_of_the_whole_group(self):
        server, footprint = self.busy()
        for pid in [server.pid, *footprint.processes]:
            kill(pid)
        server.process.wait()
        self.assertTrue(wait_until(lambda: not footprint.alive(), PROMPT), footprint.alive())
        # Nobody was left to tidy up: the next start does.
        with Raw() as fresh:
            fresh.context()
            self.assert_nothing_left(footprint, 10)

    def test_the_jailer_hangs(self):
        """Nobody ends the sandboxes in order; whoever watches over it does, and removes what it cannot remove any more."""
        server, footprint = self.busy()
        parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[1]) for pid in footprint.processes}
        watchdogs = [pid for pid, parent in parents.items() if parent == server.pid]
        jailers = [pid for pid, parent in parents.items() if parent in watchdogs]
        self.assertEqual(len(jailers), 1, footprint.processes)
        os.kill(jailers[0], signal.SIGSTOP)
        server.process.kill()
        self.assert_nothing_left(footprint, 10)

    def test_a_client_that_stops_reading(self):
        server, footprint = self.busy()
        context = server.context(name="loud")
        for _ in range(40):
            server.send({"id": "unread", "method": "tools/call", "params": {
                "name": "run_code", "arguments": {"context_id": context, "code": "print('x' * 90000)"}, "_meta": META}})
        server.process.terminate()
        self.assertTrue(ends(server.process, PROMPT), server.stderr())
        self.assert_nothing_left(footprint)

    def test_the_helper_dies(self):
        """The process that makes sandboxes takes them along; another one takes its place, and the loss is told once."""
        server = self.serve()
        context = server.context()
        footprint = Footprint(server.pid)
        children = [pid for pid in footprint.processes if Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[1] == str(server.pid)]
        self.assertTrue(children)
        for pid in children:
            kill(pid)
        # The first run may be done before the sandboxes end, or be on its way.
        runs = [server.run(context, "6 * 7", wait=60)]
        self.assertTrue(wait_until(lambda: not footprint.alive(), PROMPT), footprint.alive())
        runs += [server.run(context, "6 * 7", wait=60) for _ in range(2)]
        self.assertEqual([ran.get("result") for ran in runs][1:], ["42", "42"], runs)
        self.assertEqual(sum("are gone" in note for ran in runs for note in ran.get("notes", [])), 1, runs)
        server.request("tools/list")


class Crashes(RawTestCase):
    def test_fifty_kills_at_random_moments(self):
        dice = random.Random(SEED)
        traces = []
        for number in range(50):
            with self.subTest(number=number, seed=SEED):
                server = self.serve(start=False, POOL_SIZE=dice.choice([0, 1, 3]))
                traces += self.kill_at_work(server, dice.uniform(0, 1.6))
        with Raw() as fresh:
            fresh.context()
            for footprint in traces:
                self.assertEqual(footprint.on_disk(), [])

    def kill_at_work(self, server, delay):
        """Kills the server after `delay` and looks for survivors. Returns what it had at several moments."""
        footprints, stop = [], threading.Event()

        def watch():
            while not stop.wait(0.05):
                footprints.append(Footprint(server.pid))

        def ask(number, tool, **arguments):
            params = {"name": tool, "arguments": arguments, "_meta": META}
            server.send({"id": number, "method": "tools/call", "params": params})

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            server.send({"id": 1, "method": "server/discover", "params": {"_meta": META}})
            for number in range(2, 12):
                ask(number, "create_context", name=f"n{number}")
                ask(-number, "run_code", context_id=f"n{number}", code=CLINGING)
            time.sleep(delay)
        finally:
            stop.set()
            watcher.join()
            footprints.append(Footprint(server.pid))
            server.process.kill()
            server.process.wait()
        wait_until(lambda: not any(footprint.alive() for footprint in footprints), PROMPT)
        for footprint in footprints:
            self.assertEqual(footprint.alive(), {})
        return footprints

    def test_two_servers_do_not_disturb_each_other(self):
        one, two = self.serve(), self.serve()
        first, second = one.context(), two.context()
        one.run(first, "x = 1")
        two.run(second, "x = 2")
        with self.assertRaises(Refused) as caught:
            two.run(first, "x")
        self.assertEqual(caught.exception.code, "CONTEXT_NOT_FOUND")
        one.process.kill()
        one.process.wait()
        with Raw() as third:
            self.assertEqual(third.run(third.context(), "1")["result"], "1")
        self.assertEqual(two.run(second, "x")["result"], "2")


class Protocol(RawTestCase):
    def loose(self, server, timeout=10):
        while True:
            message = server.loose.get(timeout=timeout * PATIENCE)
            if "method" not in message:
                return message

    def test_what_is_not_json_is_answered_and_survived(self):
        for legacy in (False, True):
            server = self.serve(legacy=legacy)
            context = server.context()
            for line, code in (
                (b"hello", -32700),
                (b"{\"jsonrpc\": \"2.0\", \"id\": 1,", -32700),
                (b"\xff\xfe\x00garbage", -32700),
                (b"[1, 2", -32700),
                (b"42", -32600),
                (b"[]", -32600),
                (b"{}", -32600),
                (b"{\"jsonrpc\": \"1.0\", \"id\": 1, \"method\": \"ping\"}", -32600),
                (b"x" * (17 << 20), -32700),
            ):
                with self.subTest(line=line[:40], legacy=legacy):
                    server.write(line + b"\n")
                    message = self.loose(server)
                    self.assertEqual(message["error"]["code"], code, message)
                    self.assertEqual(server.run(context, "6 * 7")["result"], "42")

    def test_odd_but_valid_lines(self):
        server = self.serve()
        call = json.dumps({"jsonrpc": "2.0", "id": "odd", "method": "tools/list", "params": {"_meta": META}}).encode()
        for line in (b"\n\n" + call + b"\n", call + b"\r\n", b"  " + call + b"  \n"):
            server.write(line)
            self.assertEqual(len(self.loose(server)["result"]["tools"]), 7)
        for piece in (call[:10], call[10:60], call[60:] + b"\n"):
            server.write(piece)
            time.sleep(0.05)
        self.assertEqual(self.loose(server)["id"], "odd")

    def test_errors_have_their_codes(self):
        server = self.serve()
        for method, params, code in (
            ("no/such/method", {}, -32601),
            ("tools/call", {}, -32602),
            ("tools/call", {"name": "make_coffee"}, -32602),
            ("tools/call", {"name": "run_code", "arguments": [1]}, -32602),
            ("resources/read", {}, -32602),
        ):
            with self.subTest(method=method, params=params), self.assertRaises(Failed) as caught:
                server.request(method, params)
            self.assertEqual(caught.exception.code, code)
        server.send({"method": "notifications/nonsense", "params": {}})
        server.send({"method": "notifications/cancelled", "params": {"requestId": 123456}})
        self.assertEqual(len(server.request("tools/list")["tools"]), 7)

    def test_both_eras_on_one_connection_type(self):
        modern = self.serve()
        self.assertIn(MODERN, modern.request("server/discover")["supportedVersions"])
        listed = modern.request("tools/list")
        self.assertEqual(listed["resultType"], "complete")
        self.assertIn("ttlMs", listed)
        self.assertIn("cacheScope", listed)
        for version in ("2024-11-05", "2025-03-26", "2025-06-18", LEGACY):
            legacy = self.serve(start=False, legacy=True)
            client = {"name": "t", "version": "1"}
            result = legacy.request("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": client})
            self.assertEqual((result["protocolVersion"], result["serverInfo"]["name"]), (version, "belljar"))
            legacy.send({"method": "notifications/initialized"})
            self.assertEqual(len(legacy.request("tools/list")["tools"]), 7)
            self.assertEqual(legacy.request("ping"), {})
            legacy.close()

    def test_cancellation_by_notification(self):
        for legacy in (False, True):
            server = self.serve(legacy=legacy)
            context = server.context()
            server.run(context, "x = 1")
            number, answer = server.start_call("run_code", context_id=context, code="import time\ntime.sleep(60)")
            time.sleep(0.3)
            server.send({"method": "notifications/cancelled", "params": {"requestId": number, "reason": "test"}})
            self.assertEqual(server.run(context, "x", wait=5)["result"], "1")
            self.assertRaises(queue.Empty, answer.get, timeout=0.2)  # a cancelled request is not answered

    def test_logs_never_reach_standard_output(self):
        server = self.serve(LOG="trace")
        context = server.context()
        self.assertEqual(server.run(context, "import os\nos.write(1, b'raw'); print('out')")["stdout"], "rawout\n")
        server.close()
        self.assertEqual(server.noise, [])

    def test_tools_are_listed_before_anything_is_ready(self):
        """Even on a machine where no sandbox can be made: then calls say what is missing."""
        with tempfile.TemporaryDirectory() as empty:
            server = self.serve(HOME=empty, PYTHON="/nonexistent/python3")
            self.assertEqual(len(server.request("tools/list")["tools"]), 7)
            with self.assertRaises(Refused) as caught:
                server.call("create_context", name="x")
            self.assertIn(caught.exception.code, ("SERVER_NOT_READY", "CONTEXT_CREATION_FAILED"))
            self.assertIn("/nonexistent/python3", caught.exception.message)
            self.assertEqual(server.call("list_contexts"), {"contexts": [], "total": 0})
            server.close()


class Crowds(RawTestCase):
    def test_two_hundred_contexts_in_disorder(self):
        dice = random.Random(SEED)
        server = self.serve(CONTEXTS_MAX=250)
        warm = server.context(name="warm")
        server.run(warm, "1")
        server.call("stop_context", context_id=warm)
        server.call("stop_context", context_id=server.context("javascript", "warm"))
        self.settled(server)
        before = self.traces(server)

        contexts = self.at_once(server, [
            ("create_context", {"name": f"c{n}", "language": "javascript" if n % 20 == 0 else "python"}) for n in range(200)])
        ids = [context["context_id"] for context in contexts]
        self.assertEqual(len(set(ids)), 200)
        self.assertEqual(server.call("list_contexts")["total"], 200)

        running = {}
        for number, context in enumerate(ids):
            if number % 20 == 0:
                code = "let total = 0; for (let i = 0; i < 1e6; i++) total += i; total"
            else:
                code = dice.choice(["sum(range(100_000))", "import time\ntime.sleep(0.2)\n4999950000", "!true\nsum(range(100_000))"])
            running[context] = server.start_call("run_code", context_id=context, code=code)[1]
        dice.shuffle(ids)
        stops = [server.start_call("stop_context", context_id=context)[1] for context in ids]
        done = 0
        for context, answer in running.items():
            try:
                done += server.finish_call(answer, 90)["success"]
            except Refused as refused:
                self.assertIn(refused.code, ("CONTEXT_NOT_FOUND", "STOP_FAILED"))
        for answer in stops:
            self.assertEqual(server.finish_call(answer, 90)["status"], "stopped")
        self.assertGreater(done, 100)
        self.assertEqual(server.call("list_contexts")["total"], 0)

        self.settled(server)
        after = self.traces(server)
        for what in before:
            self.assertLessEqual(after[what], before[what] + (8 if what == "descriptors" else 0), (what, before, after))
        footprint = Footprint(server.pid)
        self.assertLess(server.hang_up(), PROMPT)
        self.assert_nothing_left(footprint)

    def at_once(self, server, calls):
        answers = [server.start_call(tool, **arguments)[1] for tool, arguments in calls]
        return [server.finish_call(answer, 120) for answer in answers]

    def traces(self, server):
        family = descendants(server.pid)
        footprint = Footprint(server.pid)
        mounts = sum(len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines()) for pid in family
                     if family[pid][1] == "belljar")
        return {
            "processes": len(family),
            "descriptors": descriptors(server.pid) + sum(descriptors(pid) for pid in family if family[pid][1] == "belljar"),
            "cgroups": sum(len(cgroups(instance)) for instance in footprint.instances),
            "mounts": mounts,
        }

    def settled(self, server):
        """Waits until the pool is full and the dead are buried."""
        last, since = None, time.monotonic()
        while time.monotonic() - since < 1.5:
            now = len(descendants(server.pid))
            if now != last:
                last, since = now, time.monotonic()
            time.sleep(0.1)

    def test_three_hundred_megabytes_of_output_leave_the_server_small(self):
        server = self.serve()
        context = server.context()
        server.run(context, "print('x' * 3_000_000)")
        before = memory(server.pid, "VmHWM")
        ran = server.run(context, "line = 'x' * 999\nfor _ in range(300_000): print(line)", timeout=120, wait=140)
        self.assertTrue(ran["success"], ran.get("notes"))
        self.assertEqual(ran["stdout_truncated"]["total_bytes"], 300_000_000)
        self.assertLess(len(ran["stdout"]), 101_000)
        self.assertLess(memory(server.pid, "VmHWM") - before, 30 << 20)
        self.assertEqual(server.run(context, "len(line)")["result"], "999")

    def test_memory_and_descriptors_do_not_grow(self):
        server = self.serve()
        context = server.context()
        for _ in range(200):
            server.run(context, "1 + 1")
        before = memory(server.pid), descriptors(server.pid)
        for _ in range(2000):
            server.run(context, "1 + 1")
        self.assertLess(memory(server.pid) - before[0], 8 << 20)
        self.assertLessEqual(descriptors(server.pid), before[1] + 2)


if __name__ == "__main__":
    unittest.main()
