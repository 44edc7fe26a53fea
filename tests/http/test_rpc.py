"""JSON-RPC over HTTP, in every era."""

import json
import unittest

from harness import CLIENT, Failed, HttpTestCase, NEW, OLD, PREFIX, meta

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
ERAS = ("new", "plain", "session")


class Messages(HttpTestCase):
    def send(self, body, **headers):
        return self.server.http("POST", "/mcp", body, {"Content-Type": "application/json", **headers})

    def test_what_is_not_json_is_a_parse_error(self):
        for body in (b"{", b"nonsense", b'{"jsonrpc": "2.0",}', b"\x00", b"\xff\xfe", b'{"a": NaN}', b"", b"  \n",
                     b'{"jsonrpc":"2.0","id":1,"method":"tools/list"} trailing', b"'single'"):
            with self.subTest(body):
                self.assert_failed(-32700, 400, self.send(body))

    def test_what_is_no_message_is_an_invalid_request(self):
        for body in (b"[]", json.dumps([LIST]).encode(), b"1", b"null", b'"text"', b"{}", b'{"jsonrpc":"2.0"}',
                     b'{"jsonrpc":"1.0","id":1,"method":"tools/list"}', b'{"id":1,"method":"tools/list"}',
                     b'{"jsonrpc":"2.0","id":{},"method":"tools/list"}', b'{"jsonrpc":"2.0","id":1,"method":7}'):
            with self.subTest(body):
                self.assert_failed(-32600, 400, self.send(body))

    def test_an_error_comes_under_the_id_of_its_request(self):
        for given in (7, "seven", "7"):
            answer = self.send(json.dumps({**LIST, "id": given, "method": "no/such"}).encode())
            self.assertEqual(answer.message()["id"], given)
        self.assertIsNone(self.send(b"{").message()["id"])

    def test_an_unknown_method_is_told_so(self):
        for era, status in (("new", 404), ("plain", 200), ("session", 200)):
            for method in ("no/such", "prompts/list", "Tools/List", "", "tools/list\n"):
                with self.subTest(era, method=method):
                    client = self.server.client(era=era)
                    if era == "new" and method in ("", "tools/list\n"):
                        continue  # these cannot be said in a header
                    with self.assertRaises(Failed) as caught:
                        client.request(method)
                    self.assertEqual((caught.exception.code, caught.exception.status), (-32601, status))

    def test_bad_params_are_told_so(self):
        calls = ({"name": 5}, {"arguments": {}}, {"name": "run_code", "arguments": []}, {"name": "run_code", "arguments": "x"},
                 {"name": "no_such_tool", "arguments": {}})
        for era in ("plain", "session"):
            client = self.server.client(era=era)
            for params in calls:
                with self.subTest(era, params=params), self.assertRaises(Failed) as caught:
                    client.request("tools/call", params)
                self.assertEqual(caught.exception.code, -32602)
        client = self.server.client()
        for method, params in (("tools/list", {"cursor": "nonsense"}), ("resources/read", {"uri": "belljar://nowhere"}),
                               ("tools/call", {"name": "no_such_tool", "arguments": {}})):
            with self.subTest(method), self.assertRaises(Failed) as caught:
                client.request(method, params)
            self.assertEqual(caught.exception.code, -32602, caught.exception)
        self.assertIn("run_code", self.unknown_tool(client))

    def unknown_tool(self, client):
        with self.assertRaises(Failed) as caught:
            client.request("tools/call", {"name": "no_such_tool", "arguments": {}})
        return caught.exception.message

    def test_an_unusable_argument_is_a_tool_error_that_helps(self):
        client = self.server.client()
        self.assertIn("code", self.assert_refused("INVALID_PARAMS", client, "run_code", context_id="x"))
        self.assert_refused("INVALID_LANGUAGE", client, "create_context", name="x", language="cobol")
        self.assert_refused("CONTEXT_NOT_FOUND", client, "run_code", context_id="nowhere", code="1")
        self.assert_refused("CONTEXT_NOT_FOUND", client, "execute_code", session_id="nowhere", code="1")

    def test_only_json_is_read(self):
        body = json.dumps(LIST).encode()
        for kind in (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/xml"):
            headers = {"Content-Type": kind} if kind else {}
            self.assertEqual(self.server.http("POST", "/mcp", body, headers).status, 415, kind)
        for kind in ("application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"):
            self.assertEqual(self.server.http("POST", "/mcp", body, {"Content-Type": kind}).status, 200, kind)

    def test_a_content_type_is_compared_as_a_whole(self):
        body = json.dumps(LIST).encode()
        self.assertEqual(self.server.http("POST", "/mcp", body, {"Content-Type": "Application/JSON"}).status, 200)
        for kind in ("application/jsonx", "application/json-seq", "application/json,text/plain"):
            self.assertEqual(self.server.http("POST", "/mcp", body, {"Content-Type": kind}).status, 415, kind)

    def test_accept_need_not_be_said(self):
        for accept in (None, "*/*", "application/json", "text/html"):
            headers = {"Content-Type": "application/json", **({"Accept": accept} if accept else {})}
            for message in (LIST, {**LIST, "params": {"_meta": meta()}}):
                extra = {"MCP-Protocol-Version": NEW, "Mcp-Method": "tools/list"} if "params" in message else {}
                answer = self.server.http("POST", "/mcp", json.dumps(message).encode(), {**headers, **extra})
                self.assertEqual(answer.status, 200, (accept, answer.body))
                self.assertEqual(len(answer.json()["result"]["tools"]), 22)

    def test_notifications_are_never_answered(self):
        for body in ({"jsonrpc": "2.0", "method": "notifications/initialized"},
                     {"jsonrpc": "2.0", "method": "notifications/no-such"},
                     {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}):
            answer = self.send(json.dumps(body).encode())
            self.assertEqual((answer.status, answer.body), (202, b""), body)


class NewEra(HttpTestCase):
    def post(self, message, **headers):
        return self.server.http("POST", "/mcp", json.dumps(message).encode(), {
            "Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers})

    def message(self, method="tools/list", **params):
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta()}}

    def test_discover_comes_first_but_need_not(self):
        found = self.server.client().request("server/discover")
        self.assertIn(NEW, found["supportedVersions"])
        self.assertIn(PREFIX + "tasks", found["capabilities"]["extensions"])
        listed = self.server.client().request("tools/list")
        self.assertEqual((listed["resultType"], listed["cacheScope"]), ("complete", "public"))
        self.assertGreater(listed["ttlMs"], 0)

    def test_no_session_is_given(self):
        answer = self.post(self.message(), **{"MCP-Protocol-Version": NEW, "Mcp-Method": "tools/list"})
        self.assertEqual(answer.status, 200)
        self.assertNotIn("Mcp-Session-Id", answer.headers)

    def test_headers_must_say_what_the_body_says(self):
        call = self.message("tools/call", name="list_contexts", arguments={})
        good = {"MCP-Protocol-Version": NEW, "Mcp-Method": "tools/call", "Mcp-Name": "list_contexts"}
        self.assertEqual(self.post(call, **good).status, 200)
        for change in ({"Mcp-Method": "tools/list"}, {"Mcp-Name": "run_code"}, {"MCP-Protocol-Version": OLD},
                       {"MCP-Protocol-Version": "2099-01-01"}, {"Mcp-Method": ""}):
            with self.subTest(change):
                answer = self.post(call, **{**good, **change})
                self.assertEqual(answer.status, 400, answer.body)
                self.assertIn("error", answer.json())
        for missing in good:
            with self.subTest(missing=missing):
                answer = self.post(call, **{name: value for name, value in good.items() if name != missing})
                self.assertEqual(answer.status, 400, answer.body)

    def test_a_version_that_nobody_knows_is_refused_with_those_we_do(self):
        message = self.message()
        message["params"]["_meta"][PREFIX + "protocolVersion"] = "2099-01-01"
        answer = self.post(message, **{"MCP-Protocol-Version": "2099-01-01", "Mcp-Method": "tools/list"})
        self.assertEqual(answer.status, 400, answer.body)
        self.assertIn(NEW, json.dumps(answer.json()["error"]))

    def test_initialize_belongs_to_the_past(self):
        answer = self.post(self.message("initialize", protocolVersion=NEW, capabilities={}, clientInfo=CLIENT),
                           **{"MCP-Protocol-Version": NEW, "Mcp-Method": "initialize"})
        self.assertIn(answer.status, (200, 400, 404))
        if answer.status == 200:  # taken for an old client, which is offered an old version
            self.assertLess(answer.message()["result"]["protocolVersion"], NEW)

    def test_numbers_and_text_of_every_kind_come_back(self):
        client = self.server.client()
        context = client.context()
        text = "ключ 🔑 \u0000 \u2028 \"quoted\" \\ \x1b[31m"
        self.assertEqual(client.run(context, f"print({text!r}, end='')")["stdout"], text)


class OldEra(HttpTestCase):
    def test_a_plain_post_is_enough(self):
        client = self.server.client(era="plain")
        self.assertEqual(len(client.request("tools/list")["tools"]), 22)
        done = client.call("execute_code", code="x = 20; print(x + 1)")
        self.assertEqual((done["stdout"], done["session_created"]), ("21\n", True))
        again = client.call("execute_code", code="print(x + 2)", session_id=done["session_id"])
        self.assertEqual((again["stdout"], again["session_created"]), ("22\n", False))

    def test_every_era_sees_the_same_contexts(self):
        made = self.server.client().context("seen by all")
        for era in ERAS:
            listed = self.server.client(era=era).call("list_contexts")["contexts"]
            self.assertIn(made, [context["context_id"] for context in listed], era)

    def test_every_old_version_is_spoken(self):
        for version in ("2024-11-05", "2025-03-26", "2025-06-18", OLD):
            client = self.server.client(era="plain")
            begun = client.request("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT})
            self.assertEqual(begun["protocolVersion"], version)
            self.assertEqual(begun["serverInfo"]["name"], "belljar")

    def test_a_session_is_unguessable_and_its_own(self):
        clients = [self.server.client(era="session") for _ in range(3)]
        ids = {client.session for client in clients}
        self.assertEqual(len(ids), 3)
        self.assertTrue(all(len(session) >= 32 for session in ids))
        self.assertEqual(len(clients[0].request("tools/list")["tools"]), 22)

    def test_a_stream_is_for_a_session(self):
        client = self.server.client(era="session")
        with self.server.connect() as stream:
            lines = "".join(f"{name}: {value}\r\n" for name, value in {
                "Host": "localhost", "Accept": "text/event-stream", "Mcp-Session-Id": client.session,
                "MCP-Protocol-Version": OLD}.items())
            stream.sendall(f"GET /mcp HTTP/1.1\r\n{lines}\r\n".encode())
            head = b""
            while b"\r\n\r\n" not in head:
                head += stream.recv(4096)
            self.assertIn(b" 200 ", head.split(b"\r\n")[0])
            self.assertIn(b"text/event-stream", head.lower())
            # The session works beside it.
            self.assertEqual(len(client.request("tools/list")["tools"]), 22)

    def test_delete_ends_a_session(self):
        client = self.server.client(era="session")
        self.assertIn(self.server.http("DELETE", "/mcp", headers=client.headers).status, (200, 202, 204))
        answer = client.post(client.message("tools/list"))
        self.assertEqual(answer.status, 404)
        self.assertIn("initialize", answer.message()["error"]["message"])
        self.assertEqual(self.server.http("DELETE", "/mcp", headers=client.headers).status, 404)
        stream = self.server.http("GET", "/mcp", headers={**client.headers, "Accept": "text/event-stream"})
        self.assertEqual(stream.status, 404)

    def test_a_session_that_never_was_looks_like_one_that_ended(self):
        ended = self.server.client(era="session")
        self.server.http("DELETE", "/mcp", headers=ended.headers)
        answers = []
        for session in (ended.session, "00000000-0000-0000-0000-000000000000", "../../etc/passwd", "x" * 5000):
            client = self.server.client(era="plain")
            answer = client.post(client.message("tools/list"), {"Mcp-Session-Id": session, "MCP-Protocol-Version": OLD})
            answers.append((answer.status, answer.body))
        self.assertEqual(len(set(answers)), 1, answers)
        self.assertEqual(answers[0][0], 404)

    def test_ping(self):
        for era in ("plain", "session"):
            self.assertEqual(self.server.client(era=era).request("ping"), {})


if __name__ == "__main__":
    unittest.main()
