"""What the gateway makes of other servers: which tools, under which names, and who hears of changes."""

import json
import queue
import subprocess
import sys
import unittest

from common import BELLJAR, HERE, PATIENCE, call, environment, hub, hub_file, names, quick, stdio, text, wait_until
from harness import Failed

CHANGING = [sys.executable, str(HERE / "changing_server.py")]


class Names(unittest.TestCase):
    def test_toolsets_offer_what_they_name(self):
        servers = {"changing": stdio(CHANGING)}
        self.assertEqual(names(hub(self, servers)), ["changing__grow"])
        both = names(hub(self, servers, toolsets="contexts,hub"))
        self.assertIn("run_code", both)
        self.assertEqual(both[-1], "changing__grow")
        self.assertNotIn("changing__grow", names(hub(self, servers, toolsets="contexts")))

    def test_odd_names_become_valid_ones(self):
        server = hub(self, {"my odd.server": stdio(CHANGING)})
        (name,) = names(server)
        self.assertRegex(name, r"^my_odd_server__grow_[0-9a-f]{6}$")
        self.assertEqual(text(call(server, name)), "grown1")

    def test_allow_and_deny(self):
        server = hub(self, {"quick": stdio(quick(), tools={"allow": ["a*", "wait"], "deny": ["wait"]})})
        self.assertEqual(names(server), ["quick__add"])
        with self.assertRaises(Failed) as refused:
            call(server, "quick__wait", seconds=1)
        self.assertIn("Unknown tool: quick__wait", refused.exception.message)


class Changes(unittest.TestCase):
    def heard(self, server, method):
        """Whether such a notification comes."""
        while True:
            try:
                message = server.loose.get(timeout=60 * PATIENCE)
            except queue.Empty:
                return False
            if message.get("method") == method:
                return True

    def test_older_clients_are_told(self):
        server = hub(self, {"changing": stdio(CHANGING)}, legacy=True)
        self.assertEqual(names(server), ["changing__grow"])
        call(server, "changing__grow")
        self.assertTrue(self.heard(server, "notifications/tools/list_changed"))
        self.until_listed(server, "changing__grown1")

    def test_newer_clients_are_told_when_they_listen(self):
        server = hub(self, {"changing": stdio(CHANGING)})
        self.assertEqual(names(server), ["changing__grow"])
        server.start("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        self.assertTrue(self.heard(server, "notifications/subscriptions/acknowledged"))
        call(server, "changing__grow")
        self.assertTrue(self.heard(server, "notifications/tools/list_changed"))
        self.until_listed(server, "changing__grown1")

    def until_listed(self, server, name):
        self.assertTrue(wait_until(lambda: name in names(server), 60 * PATIENCE))


class Trouble(unittest.TestCase):
    def test_a_dead_server_is_told_of_and_harms_nobody(self):
        timing = {"retries": [0.05], "circuit": 0.2, "patience": 300, "connect": 300, "probe": 100}
        server = hub(self, {
            "dead": stdio(["sh", "-c", "echo 'no licence found' >&2; exit 7"]),
            "gone": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer sesame-open"}},
            "changing": stdio(CHANGING),
        }, timing=timing, LOG="debug")
        self.assertEqual(names(server), ["changing__grow"])
        self.assertEqual(text(call(server, "changing__grow")), "grown1")
        refused = call(server, "dead__anything")
        self.assertTrue(refused["isError"])
        told = json.loads(text(refused))
        self.assertEqual(told["code"], "HUB_UNAVAILABLE")
        self.assertIn("no licence found", told["error"])
        log = server.stderr()
        self.assertIn("no licence found", log)
        self.assertIn("refused", log)
        self.assertNotIn("sesame-open", log)

    def test_mistakes_in_the_file_are_told_at_once(self):
        for servers, expected in [
            ({"a": {"command": "x", "env": {"KEY": "${NOT_SET_ANYWHERE}"}}}, "NOT_SET_ANYWHERE is not set"),
            ({"a": {"command": "x", "tool": {}}}, '"tool" means nothing here'),
            ({"a": {"command": "x", "sandbox": True, "network": "everything"}}, '"everything" is not a network policy'),
        ]:
            with hub_file(servers) as file:
                ran = subprocess.run([BELLJAR, "mcp", "--hub", file], stdin=subprocess.DEVNULL, capture_output=True,
                                     text=True, env=environment(), timeout=60 * PATIENCE)
            self.assertEqual(ran.returncode, 1)
            self.assertIn(expected, ran.stderr)


class Command(unittest.TestCase):
    def run_hub(self, servers, *arguments):
        with hub_file(servers) as file:
            return subprocess.run([BELLJAR, "hub", *arguments, "--hub", file], capture_output=True, text=True,
                                  env=environment(), timeout=120 * PATIENCE)

    def test_people_see_servers_and_tools_and_call_them(self):
        servers = {"changing": stdio(CHANGING), "dead": stdio(["no-such-program"])}
        status = self.run_hub(servers, "status", "--json")
        self.assertEqual(status.returncode, 1, "one of the servers is not ready")
        told = {server["name"]: server for server in json.loads(status.stdout)["servers"]}
        self.assertEqual(told["changing"]["state"], "ready")
        self.assertIn("no-such-program", told["dead"]["last_error"])
        table = self.run_hub(servers, "status").stdout.splitlines()
        self.assertTrue(table[0].startswith("SERVER"))
        self.assertEqual(len(table), 3)
        servers = {"changing": stdio(CHANGING)}
        self.assertIn("changing__grow", self.run_hub(servers, "tools").stdout)
        called = self.run_hub(servers, "call", "changing__grow", "{}")
        self.assertEqual((called.returncode, called.stdout), (0, "grown1\n"))
        missing = self.run_hub(servers, "call", "changing__shrink")
        self.assertEqual(missing.returncode, 1)
        self.assertIn("there is no tool", missing.stderr)
