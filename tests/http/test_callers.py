"""Callers: tokens, quotas, and that nobody can tell what another one has."""

import json
import re
import time
import unittest
import uuid

from harness import Background, Failed, Home, HttpTestCase, OLD, PREFIX, Refused, Server, wait_until


class Tokens(unittest.TestCase):
    def setUp(self):
        self.home = Home()
        self.addCleanup(self.home.remove)

    def serve(self, *arguments):
        server = Server(*arguments, home=self.home, ready=False, size=("--pool-size", "0"))
        self.addCleanup(server.close)
        return server

    def listed(self, server, token=None, **headers):
        client = server.client(token)
        return client.post(client.message("tools/list"), headers)

    def test_changes_take_effect_without_a_restart(self):
        server = self.serve()
        self.assertEqual(self.listed(server).status, 200)
        ann = self.home.token("add", "ann")
        self.assertEqual(self.listed(server).status, 401, "the first token closes the door")
        self.assertEqual(self.listed(server, ann).status, 200)
        second = self.home.token("add", "ann")
        self.assertEqual(self.listed(server, second).status, 200)
        shown = self.home.token("list")
        self.assertNotIn(ann, shown)
        ids = re.findall(r"(?m)^(\S+)\s.*\bann\b|^ann\s+(\S+)", shown)
        self.assertEqual(len(ids), 2, shown)
        self.home.token("revoke", "ann")
        self.assertEqual([self.listed(server, token).status for token in (ann, second, None)], [401] * 3)
        with self.assertRaises(RuntimeError):
            self.home.token("revoke", "ann")

    def test_a_token_expires(self):
        self.home.token("add", "keeper")
        server = self.serve()
        token = self.home.token("add", "ann", "--expires", "2s")
        self.assertEqual(self.listed(server, token).status, 200)
        self.assertTrue(wait_until(lambda: self.listed(server, token).status == 401, 10))

    def test_refusals_say_how_to_get_in_and_nothing_else(self):
        ann = self.home.token("add", "ann")
        gone = self.home.token("add", "gone")
        self.home.token("revoke", "gone")
        server = self.serve()
        missing = self.listed(server)
        self.assertEqual((missing.status, missing.headers["WWW-Authenticate"]), (401, 'Bearer realm="belljar"'))
        other_scheme = self.listed(server, Authorization="Basic YTpi")
        self.assertEqual((other_scheme.status, other_scheme.headers["WWW-Authenticate"]), (401, 'Bearer realm="belljar"'))
        bodies = set()
        for token in (gone, ann[:-1], ann[:-1] + ("A" if ann[-1] != "A" else "B"), "nonsense"):
            answer = self.listed(server, token)
            self.assertEqual(answer.status, 401)
            self.assertIn('error="invalid_token"', answer.headers["WWW-Authenticate"])
            bodies.add((answer.body, answer.headers["WWW-Authenticate"]))
            time.sleep(0.2)  # more than five failures a second are not even answered
        self.assertEqual(len(bodies), 1, "nobody learns which of them it was")
        self.assertEqual(self.listed(server, Authorization=f"bearer {ann}").status, 200)

    def test_a_token_in_the_url_is_refused_even_if_it_is_valid(self):
        ann = self.home.token("add", "ann")
        server = self.serve()
        client = server.client(ann)
        body = json.dumps(client.message("tools/list")).encode()
        for headers in (client.headers, {**client.headers, "Authorization": ""}):
            answer = server.http("POST", f"/mcp?access_token={ann}", body, headers)
            self.assertEqual(answer.status, 401)
            self.assertNotIn(ann.encode(), answer.body)
        self.assertNotIn(ann, server.log())

    def test_two_tokens_at_once_are_none(self):
        ann, bob = self.home.token("add", "ann"), self.home.token("add", "bob")
        server = self.serve()
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
        both = server.raw(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                          + f"Authorization: Bearer {ann}\r\nAuthorization: Bearer {bob}\r\n".encode()
                          + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self.assertTrue(both.startswith(b"HTTP/1.1 401 "), both)

    def test_guessing_is_slowed_down_and_disturbs_nobody(self):
        ann = self.home.token("add", "ann")
        server = self.serve()
        answers = [self.listed(server, f"bj_{n}") for n in range(100)]
        statuses = [answer.status for answer in answers]
        self.assertEqual(set(statuses), {401, 429})
        slowed = next(answer for answer in answers if answer.status == 429)
        self.assertGreaterEqual(int(slowed.headers["Retry-After"]), 1)
        self.assertEqual(self.listed(server, ann).status, 200)

    def test_a_broken_file_lets_nobody_in(self):
        ann = self.home.token("add", "ann")
        server = self.serve()
        self.assertEqual(self.listed(server, ann).status, 200)
        path = self.home.path / "tokens.json"
        whole = path.read_bytes()
        path.write_bytes(whole[:20])
        self.assertTrue(wait_until(lambda: self.listed(server, ann).status == 503, 5))
        path.write_bytes(whole)
        self.assertTrue(wait_until(lambda: self.listed(server, ann).status == 200, 5))


class Quotas(HttpTestCase):
    @classmethod
    def prepare(cls):
        add = lambda name, *quota: cls.home.token("add", name, *quota)
        cls.tokens = {"contexts": add("few", "--contexts", "2"), "runs": add("serial", "--runs", "1"),
                      "cpu": add("brief", "--cpu-seconds", "2"), "disk": add("small", "--disk", "8"), "free": add("free")}

    def client(self, which):
        return self.server.client(self.tokens[which])

    def test_contexts(self):
        client = self.client("contexts")
        first, second = client.context("a"), client.call("execute_code", code="1")["session_id"]
        message = self.assert_refused("LIMIT_EXCEEDED", client, "create_context", name="c")
        self.assertIn("2", message)
        self.assertIn("stop_context", message)
        self.assertIn("stop_session", self.assert_refused("LIMIT_EXCEEDED", client, "execute_code", code="1"))
        client.call("stop_context", context_id=first)
        client.call("stop_session", session_id=second)
        client.context("d")
        self.client("free").context("not concerned")

    def test_runs(self):
        client = self.client("runs")
        one, two = client.context("one"), client.context("two")
        leaving = client.open("run_code", context_id=one, code="open('began', 'w')\nimport time\nfor _ in range(300): time.sleep(0.1)")
        self.assertTrue(wait_until(lambda: client.call("list_files", context_id=one)["total"], 10))
        self.assertIn("limit is 1", self.limit(client, "run_code", context_id=two, code="1"))
        self.assertIn("limit is 1", self.limit(client, "execute_command", session_id=two, command="true"))
        self.assertEqual(self.client("free").call("execute_code", code="print(1)")["stdout"], "1\n")
        leaving.close()
        self.assertTrue(wait_until(lambda: self.limit(client, "run_code", context_id=two, code="1") is None, 10))

    def limit(self, client, tool, /, **arguments):
        try:
            client.call(tool, **arguments)
        except Refused as refused:
            self.assertEqual(refused.code, "LIMIT_EXCEEDED")
            return refused.message

    def test_processor_time(self):
        client = self.client("cpu")
        context = client.context()
        self.assertEqual(client.value(context, "x = 1; x"), "1")
        spent = client.run(context, "while True: pass", timeout=20)
        self.assertFalse(spent["success"])
        self.assertRegex(json.dumps(spent), r"processor seconds")
        message = self.assert_refused("LIMIT_EXCEEDED", client, "run_code", context_id=context, code="1")
        self.assertRegex(message, r"of 2 processor seconds.*minutes")
        self.assert_refused("LIMIT_EXCEEDED", client, "execute_command", session_id=context, command="true")
        # What is there can still be fetched, and ended.
        client.call("list_files", context_id=context)
        client.call("stop_context", context_id=context)

    def test_disk(self):
        client = self.client("disk")
        context = client.context()
        grow = "import time\nwith open('/volumes/shared/big', 'ab') as f:\n" \
               "    for _ in range(600):\n        f.write(b'x' * 1_000_000); f.flush(); time.sleep(0.05)"
        told = client.run(context, grow, timeout=60)
        self.assertFalse(told["success"])
        self.assertIn("limit is 8 MB", json.dumps(told))
        self.assertEqual(client.call("get_volume_path")["volumes"][0]["limit_bytes"], 8 << 20)
        self.assertTrue(client.run(context, "import os; os.remove('/volumes/shared/big')")["success"])


class TwoCallers(HttpTestCase):
    """Bob tries everything to reach what is Ann's. What he is told must be what he would be told about nothing."""

    arguments = ("--default-context",)

    @classmethod
    def prepare(cls):
        cls.ann_token, cls.bob_token = cls.home.token("add", "ann"), cls.home.token("add", "bob")

    def setUp(self):
        self.ann, self.bob = self.server.client(self.ann_token), self.server.client(self.bob_token)
        self.context = self.ann.context("plans")
        self.ann.call("upload_file", context_id=self.context, path="secret.txt", content="treasure")
        self.addCleanup(self.ann.call, "stop_context", context_id=self.context)

    def answer(self, client, method, params):
        """All that a client sees of an answer."""
        message = client.message(method, params)
        message["id"] = 1
        answer = client.post(message)
        return answer.status, answer.body

    def assert_like_nothing(self, method, params, real, unreal):
        """The answer about a real thing of Ann's is, letter by letter, the one about a thing that never was."""
        text = json.dumps(params)
        about = [self.answer(self.bob, method, json.loads(text.replace("THING", thing))) for thing in (real, unreal)]
        self.assertEqual(about[0][0], about[1][0])
        self.assertEqual(about[0][1].replace(real.encode(), b"THING"), about[1][1].replace(unreal.encode(), b"THING"))
        self.assertNotIn(b"treasure", about[0][1])

    def tools(self):
        return [
            ("run_code", {"context_id": "THING", "code": "1"}), ("stop_context", {"context_id": "THING"}),
            ("upload_file", {"context_id": "THING", "path": "a", "content": "b"}),
            ("download_file", {"context_id": "THING", "path": "secret.txt"}), ("list_files", {"context_id": "THING"}),
            ("execute_code", {"session_id": "THING", "code": "1"}),
            ("execute_command", {"session_id": "THING", "command": "ls"}),
            ("execute_command", {"session_id": "THING", "command": "ls", "background": True}),
            ("execute_command", {"session_id": "THING", "process_id": "proc-1"}),
            ("execute_command", {"session_id": "THING", "process_id": "proc-1", "signal": "KILL"}),
            ("execute_command", {"session_id": "THING", "process_id": "proc-1", "input": "x"}),
            ("get_sessions", {"session_id": "THING"}), ("stop_session", {"session_id": "THING"}),
            ("get_volume_path", {"session_id": "THING"}),
            ("sandbox_destroy", {"sandbox_id": "THING"}), ("code_run", {"sandbox_id": "THING", "language": "python", "code": "1"}),
            ("file_read", {"sandbox_id": "THING", "path": "secret.txt"}), ("file_list", {"sandbox_id": "THING"}),
            ("file_write", {"sandbox_id": "THING", "path": "a", "content": "b"}),
            ("browser_goto", {"sandbox_id": "THING", "url": "file:///workspace/secret.txt"}),
            ("browser_click", {"sandbox_id": "THING", "selector": "ref_1"}),
            ("browser_type", {"sandbox_id": "THING", "selector": "ref_1", "text": "a"}),
            ("browser_snapshot", {"sandbox_id": "THING"}),
        ]

    def test_every_tool_of_ours_is_among_those_tried(self):
        tried = {name for name, _ in self.tools()} | {"create_context", "list_contexts", "sandbox_create"}
        self.assertEqual(tried, {tool["name"] for tool in self.bob.request("tools/list")["tools"]})

    def test_ids_and_names_of_another_are_unknown(self):
        self.ann.call("execute_command", session_id=self.context, command="sleep 60", background=True)
        random_id = f"ctx-{uuid.uuid4()}"
        self.assertEqual(len(random_id), len(self.context))
        for tool, arguments in self.tools():
            params = {"name": tool, "arguments": arguments}
            with self.subTest(tool, arguments=arguments):
                self.assert_like_nothing("tools/call", params, self.context, random_id)
                self.assert_like_nothing("tools/call", params, "plans", "plane")
                told = json.loads(self.answer(self.bob, "tools/call", json.loads(
                    json.dumps(params).replace("THING", self.context)))[1])
                self.assertTrue(told["result"]["isError"], told)
        self.assertEqual(self.ann.value(self.context, "open('secret.txt').read()"), "'treasure'")

    def test_the_current_sandbox_is_ones_own(self):
        sandbox = self.ann.call("sandbox_create")["sandbox_id"]
        self.addCleanup(self.ann.call, "sandbox_destroy", sandbox_id=sandbox)
        self.ann.call("file_write", path="secret.txt", content="treasure")
        for tool, arguments in (("file_read", {"path": "secret.txt"}), ("sandbox_destroy", {})):
            answer = self.answer(self.bob, "tools/call", {"name": tool, "arguments": arguments})[1]
            told = json.loads(answer)["result"]
            self.assertEqual((told["isError"], told["structuredContent"]["code"]), (True, "NO_SANDBOX"))
        self.assertEqual(self.ann.call("file_read", path="secret.txt")["content"], "treasure")

    def test_lists_show_nothing(self):
        for tool, key in (("list_contexts", "contexts"), ("get_sessions", "sessions")):
            self.assertNotIn(self.context, json.dumps(self.bob.call(tool)), tool)
            self.assertIn(self.context, json.dumps(self.ann.call(tool)), tool)
        resources = lambda client: json.dumps(client.request("resources/list"))
        self.assertIn(self.context, resources(self.ann))
        self.assertNotIn(self.context, resources(self.bob))

    def test_resources_are_unknown(self):
        listed = self.ann.request("resources/list")["resources"]
        uri = next(item["uri"] for item in listed if self.context in item["uri"])
        self.assertEqual(self.ann.request("resources/read", {"uri": uri})["contents"][0]["text"], "treasure")
        shape = {"uri": uri.replace(self.context, "THING")}
        self.assert_like_nothing("resources/read", shape, self.context, f"ctx-{uuid.uuid4()}")
        self.assert_like_nothing("resources/read", shape, "plans", "plane")

    def test_the_same_name_is_no_conflict(self):
        own = self.bob.context("plans")
        self.assertEqual(self.bob.value("plans", "x = 'bob'; x"), "'bob'")
        self.assertEqual(self.ann.value("plans", "x = 'ann'; x"), "'ann'")
        self.assertEqual(self.bob.value(own, "x"), "'bob'")
        self.assertEqual(self.bob.call("list_files", context_id="plans")["total"], 0)
        self.bob.call("stop_context", context_id="plans")
        self.assertEqual(self.ann.value("plans", "x"), "'ann'")

    def test_default_contexts_are_two(self):
        run = lambda client, code: client.call("run_code", code=code)
        run(self.ann, "hidden = 'treasure'")
        self.assertFalse(run(self.bob, "hidden")["success"])
        self.assert_refused("CONTEXT_NOT_FOUND", self.bob, "run_code", context_id="default-javascript", code="1")
        ids = {self.contexts(client)["default-python"] for client in (self.ann, self.bob)}
        self.assertEqual(len(ids), 2)

    def contexts(self, client):
        return {item["name"]: item["context_id"] for item in client.call("list_contexts")["contexts"]}

    def test_volumes_are_two(self):
        self.ann.run(self.context, "open('/volumes/shared/secret', 'w').write('treasure')")
        own = self.bob.call("execute_command", command="ls -laR /volumes; find / -name secret 2>/dev/null; cat /volumes/shared/secret")
        self.assertNotIn("treasure", own["stdout"])
        self.assertNotIn("/secret", own["stdout"])
        self.assertEqual(self.ann.call("execute_command", command="cat /volumes/shared/secret")["stdout"], "treasure")
        self.assertEqual(self.ann.call("get_volume_path"), self.bob.call("get_volume_path"))

    def test_tasks_are_unknown(self):
        self.ann.extensions = self.bob.extensions = {PREFIX + "tasks": {}}
        started = self.ann.result("run_code", context_id=self.context, code="import time\nfor _ in range(600): time.sleep(0.1)",
                                  timeout=120)
        task = started["taskId"]
        unreal = re.sub("[0-9a-f]", "0", task) if re.search("[0-9a-f]{8}", task) else task[::-1]
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            params = {"taskId": "THING", **({"inputResponses": {}} if method == "tasks/update" else {})}
            with self.subTest(method):
                self.assert_like_nothing(method, params, task, unreal)
                with self.assertRaises(Failed):
                    self.bob.request(method, json.loads(json.dumps(params).replace("THING", task)))
        self.assertEqual(self.ann.request("tasks/get", {"taskId": task})["status"], "working")
        self.ann.request("tasks/cancel", {"taskId": task})

    def test_sessions_are_unknown(self):
        ann = self.server.client(self.ann_token, era="session")
        bob = self.server.client(self.bob_token, era="plain")
        unreal = str(uuid.uuid4())
        for method in ("POST", "GET", "DELETE"):
            answers = []
            for session in (ann.session, unreal):
                headers = {**bob.headers, "Mcp-Session-Id": session, "MCP-Protocol-Version": OLD}
                if method == "GET":
                    headers["Accept"] = "text/event-stream"
                body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}' if method == "POST" else None
                answer = self.server.http(method, "/mcp", body, headers)
                answers.append((answer.status, answer.body, sorted(name for name in answer.headers)))
            self.assertEqual(answers[0], answers[1], method)
            self.assertEqual(answers[0][0], 404)
        self.assertEqual(len(ann.request("tools/list")["tools"]), 22)

    def test_a_cancellation_reaches_only_ones_own(self):
        running = Background(self.ann.value, self.context, "import time\ntime.sleep(1)\n'went on'")
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        for number in range(20):
            cancel["params"]["requestId"] = number
            self.bob.post(json.dumps(cancel).encode())
        self.assertEqual(running.join(), "'went on'")

    def test_what_everybody_may_see_says_nothing_about_anybody(self):
        for path in ("/health", "/version", "/mcp"):
            page = self.server.http("GET", path).body.decode()
            for secret in (self.context, "plans", '"ann"', '"bob"', str(self.home.path)):
                self.assertNotIn(secret, page, path)
        page = self.server.http("GET", "/metrics", headers=self.bob.headers)
        self.assertEqual(page.status, 403)


if __name__ == "__main__":
    unittest.main()
