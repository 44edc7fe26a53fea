"""Ways in which a server once fell over."""

import json
import os
import signal
import time
import unittest
from pathlib import Path

from harness import Background, Home, HttpTestCase, Refused, Server, wait_until

MANY = 320  # more than fit into the socket between server and jailer at once


class Crowd(unittest.TestCase):
    def test_a_large_number_of_contexts_survives_and_then_ends(self):
        home = Home()
        self.addCleanup(home.remove)
        with Server("--drain", "--contexts-max", "1000", home=home) as first:
            client = first.client()
            contexts = [client.context(f"c{n}") for n in range(MANY)]
            client.value(contexts[-1], "x = 'last'; x")
            self.assertEqual(first.stop(), 0, first.log())
        second = Server("--contexts-max", "1000", home=home, ready=False)
        tree = home.tree()
        client = second.client()
        self.assertEqual(client.call("list_contexts")["total"], MANY)
        self.assertEqual(client.value(contexts[-1], "x"), "'last'")
        self.assertEqual(second.stop(), 0, second.log())
        self.assertTrue(wait_until(lambda: not home.left(tree), 10), home.left(tree))

    def test_a_jailer_without_a_server_is_idle(self):
        home = Home()
        self.addCleanup(home.remove)
        first = Server(home=home)
        client = first.client()
        context = client.context()
        jailers = home.jailers()
        first.kill()
        used = lambda: sum(ticks(pid) for pid in jailers)
        before = used()
        time.sleep(2)
        # Of the 200 or more that a busy loop would use.
        self.assertLess(used() - before, 50)
        second = Server(home=home, ready=False)
        self.assertEqual(second.client().call("list_contexts")["contexts"][0]["context_id"], context)
        self.assertEqual(second.stop(), 0, second.log())
        self.assertTrue(wait_until(lambda: not home.left(), 10), home.left())


def ticks(pid):
    """Processor time of a process, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


class Together(HttpTestCase):
    arguments = ("--default-context",)

    def test_first_calls_at_the_same_time_mean_the_same_context(self):
        client = self.server.client()
        threads = [Background(self.server.client().call, "run_code", code="1") for _ in range(8)]
        for thread in threads:
            self.assertTrue(thread.join()["success"])
        self.assertEqual(client.call("list_contexts")["total"], 1)

    def test_a_large_introduction_is_not_kept(self):
        client = self.server.client(era="plain")
        who = {"name": "x" * 100_000, "version": "1"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": who}
        answer = self.server.http("POST", "/mcp", json.dumps(client.message("initialize", params)).encode(),
                                  {"Content-Type": "application/json"})
        self.assertEqual(answer.status, 413, answer.body)

    def test_long_calls_with_large_bodies_leave_room_for_others(self):
        client = self.server.client()
        context = client.context()
        body = "#" * 10_000_000 + "\nimport time; time.sleep(30)"
        streams = [client.open("run_code", context_id=context, code=body) for _ in range(4)]
        try:
            other = self.server.client()
            self.assertGreater(len(other.request("tools/list")["tools"]), 5)
        finally:
            for stream in streams:
                stream.close()


class Zygote(HttpTestCase):
    def test_a_probe_that_gives_up_leaves_no_sandbox(self):
        """A jailer that stands still for a while makes the health prober give up again and again."""
        jailers = self.home.jailers()
        idle = lambda: len(self.home.tree())
        before = idle()
        for pid in jailers:
            os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(8)
        finally:
            for pid in jailers:
                os.kill(pid, signal.SIGCONT)
        self.assertTrue(wait_until(lambda: self.server.http("GET", "/health").status == 200, 20))
        self.assertTrue(wait_until(lambda: idle() <= before + 2, 20), (before, idle()))


class Disk(HttpTestCase):
    arguments = ("--quota-disk", "20")

    def test_a_volume_over_its_limit_stops_what_makes_it_grow(self):
        client = self.server.client()
        context = client.context()
        write = "import time\nwith open('/volumes/shared/big', 'ab') as f:\n    while True: f.write(bytes(1 << 20)); f.flush(); time.sleep(0.02)"
        told = client.call("run_code", context_id=context, code=write, timeout=60)
        self.assertFalse(told["success"])
        self.assertIn("its limit is 20 MB", " ".join(told["notes"]))
        self.assertEqual(client.value(context, "import os; os.remove('/volumes/shared/big'); 'gone'"), "'gone'")

    def test_the_same_in_the_background(self):
        client = self.server.client()
        context = client.context()
        command = "while true; do head -c 1000000 /dev/zero >> /volumes/shared/more; sleep 0.02; done"
        process = client.call("execute_command", session_id=context, command=command, background=True)["process_id"]
        ended = lambda: client.call("execute_command", session_id=context, process_id=process)["status"] != "running"
        try:
            self.assertTrue(wait_until(ended, 30))
        except Refused:
            pass  # the whole sandbox was ended
        client.call("execute_command", session_id=context, command="rm -f /volumes/shared/more")


if __name__ == "__main__":
    unittest.main()
