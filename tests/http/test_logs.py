"""The log: one line for each call, and no secrets in any of them."""

import json
import re
import unittest
import uuid

from harness import HttpTestCase, wait_until


class Text(HttpTestCase):
    @classmethod
    def prepare(cls):
        cls.token = cls.home.token("add", "ann")

    def access_lines(self):
        return [line for line in self.server.log().splitlines() if "belljar::access" in line]

    def fields(self, line):
        return {name: value.strip('"') for name, value in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', line)}

    def new_lines(self, work):
        before = len(self.access_lines())
        result = work()
        self.assertTrue(wait_until(lambda: len(self.access_lines()) > before, 5))
        return result, [self.fields(line) for line in self.access_lines()[before:]]

    def test_each_call_has_one_line(self):
        client = self.server.client(self.token)
        context, lines = self.new_lines(client.context)
        self.assertEqual(len(lines), 1)
        self.assertEqual((lines[0]["caller"], lines[0]["tool"], lines[0]["outcome"]), ("ann", "create_context", "ok"))
        for era in ("new", "plain", "session"):
            client = self.server.client(self.token, era=era)
            for code, outcome in (("1", "ok"), ("1/0", "program_failed")):
                _, lines = self.new_lines(lambda: client.run(context, code))
                lines = [line for line in lines if line["method"] == "tools/call"]
                self.assertEqual(len(lines), 1, lines)
                line = lines[0]
                self.assertEqual({name: line[name] for name in ("caller", "door", "tool", "sandbox", "outcome")}, {
                    "caller": "ann", "door": "http", "tool": "run_code", "sandbox": context, "outcome": outcome})
                self.assertGreater(float(line["ms"]), 0)

    def test_what_went_wrong_is_the_outcome(self):
        client = self.server.client(self.token)
        _, lines = self.new_lines(lambda: client.result("run_code", context_id="nowhere", code="1"))
        self.assertEqual(lines[0]["outcome"], "CONTEXT_NOT_FOUND")
        _, lines = self.new_lines(lambda: client.post(client.message("tools/call", {"name": "no_such", "arguments": {}})))
        self.assertEqual(lines[0]["outcome"], "-32602")
        _, lines = self.new_lines(lambda: self.server.client("wrong").post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}))
        self.assertEqual((lines[0]["outcome"], lines[0]["reason"], lines[0]["status"]), ("denied", "auth", "401"))

    def test_nobody_writes_lines_of_their_own(self):
        client = self.server.client(self.token, era="plain")
        forged = 'x\n2026-01-01T00:00:00Z  INFO belljar::access: caller="forged"\r\x1b[31m'
        client.result("run_code", context_id=forged, code="1")
        client.post(client.message("tools/call", {"name": forged, "arguments": {}}))
        client.post({"jsonrpc": "2.0", "id": forged, "method": forged})
        self.assertFalse([line for line in self.server.log().splitlines() if line.startswith("2026-01-01")])
        self.assertNotIn("\x1b", self.server.log())
        self.assertNotIn("\r", self.server.log())


class Secrets:
    """Everything that callers send, marked so that it can be found."""

    @classmethod
    def prepare(cls):
        cls.token = cls.home.token("add", "ann")

    def test_no_secret_is_logged(self):
        marks = {name: f"mark{uuid.uuid4().hex}" for name in (
            "code", "file", "env", "argument", "output", "input", "error", "query", "header", "wrong_token", "description", "path")}
        for era in ("new", "plain", "session"):
            client = self.server.client(self.token, era=era)
            context = client.call("create_context", name="logged", description=marks["description"])["context_id"]
            client.run(context, f"# {marks['code']}\nprint('{marks['output']}')")
            client.run(context, f"raise ValueError('{marks['error']}')")
            client.call("upload_file", context_id=context, path=f"{marks['path']}.txt", content=marks["file"])
            client.call("download_file", context_id=context, path=f"{marks['path']}.txt")
            client.call("execute_command", session_id=context, command="cat", args=[f"/{marks['argument']}"], env={"SECRET": marks["env"]})
            process = client.call("execute_command", session_id=context, command="cat", background=True)["process_id"]
            client.call("execute_command", session_id=context, process_id=process, input=marks["input"], close_input=True)
            client.result("run_code", context_id=context, code=f"{marks['code']}", timeout=-1)
            client.call("stop_context", context_id=context)
        self.server.http("POST", f"/mcp?access_token={marks['query']}", b"{}", {"Content-Type": "application/json"})
        self.server.http("POST", "/mcp", b"{" + marks["code"].encode(), {
            "Content-Type": "application/json", "Authorization": f"Bearer {marks['wrong_token']}", "Cookie": marks["header"]})
        self.server.http("POST", "/mcp", b'{"jsonrpc":"2.0","id":1,"method":"' + marks["code"].encode(), {
            "Content-Type": "application/json", "Authorization": f"Bearer {self.token}"})
        log = self.server.log()
        self.assertIn("run_code", log)
        self.assertEqual([name for name, mark in marks.items() if mark in log], [])
        self.assertNotIn(self.token, log)
        self.assertNotIn(self.token[-20:], log)


class SecretsInText(Secrets, HttpTestCase):
    pass


class SecretsInDebug(Secrets, HttpTestCase):
    arguments = ("--log", "warn,belljar=debug,belljar_sandbox=debug,belljar_tools=debug,belljar_backends=debug")


class SecretsInJson(Secrets, HttpTestCase):
    arguments = ("--log", "json,info")

    def test_every_line_is_an_object(self):
        client = self.server.client(self.token)
        client.run(client.context("json"), "1")
        client.result("run_code", context_id='quote " and \n line', code="1")
        lines = [json.loads(line) for line in self.server.log().splitlines()]
        calls = [line for line in lines if line.get("target") == "belljar::access"]
        self.assertGreaterEqual(len(calls), 3)
        call = next(line for line in calls if line.get("tool") == "run_code")
        self.assertLessEqual({"timestamp", "level", "caller", "door", "method", "tool", "ms", "outcome"}, set(call))


if __name__ == "__main__":
    unittest.main()
