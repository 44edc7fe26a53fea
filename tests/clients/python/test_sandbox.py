"""The tools of the toolset `sandbox` that need no browser, over pipes."""

import base64
import json
import unittest

from harness import Raw

TOOLS = ["sandbox_create", "sandbox_destroy", "browser_goto", "browser_click", "browser_type", "browser_snapshot",
         "code_run", "file_read", "file_write", "file_list"]
NOBODY = "ctx-00000000-0000-4000-8000-000000000000"


class Sandbox(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Raw(toolsets="sandbox,contexts")

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def setUp(self):
        self.sandbox = self.call("sandbox_create")["sandbox_id"]
        self.addCleanup(self.result, "sandbox_destroy", sandbox_id=self.sandbox)

    def result(self, tool, /, **arguments):
        return self.server.finish(self.server.start_call(tool, **arguments)[1])

    def call(self, tool, /, **arguments):
        result = self.result(tool, **arguments)
        self.assertFalse(result["isError"], result["content"])
        summary, written = result["content"][0]["text"].split("\n", 1)
        self.assertTrue(summary.startswith(f"{tool} ok: "), summary)
        self.assertEqual(json.loads(written), result["structuredContent"])
        return result["structuredContent"]

    def refused(self, code, words, tool, /, **arguments):
        result = self.result(tool, **arguments)
        self.assertTrue(result["isError"])
        told = result["structuredContent"]
        self.assertEqual(told["code"], code, told)
        self.assertIn(words, told["error"])
        lines = result["content"][0]["text"].split("\n")
        self.assertEqual(lines[:2], [f"{tool} failed: {told['error']}", f"hint: {told['hint']}"])
        return told["hint"]

    def run_code(self, code, language="python", **arguments):
        return self.call("code_run", language=language, code=code, **arguments)

    def test_the_tools_are_the_toolset(self):
        with Raw(toolsets="sandbox") as server:
            self.assertEqual([tool["name"] for tool in server.request("tools/list")["tools"]], TOOLS)

    def test_both_languages_keep_their_state_in_one_sandbox(self):
        self.assertEqual(self.run_code("x = 20\nopen('a.txt', 'w').write('from python')\nx + 1")["result"], "21")
        there = "let x = 3; require('fs').readFileSync('/workspace/a.txt', 'utf8')"
        self.assertEqual(self.run_code(there, "node")["result"], "'from python'")
        self.assertEqual(self.run_code("x")["result"], "20")
        self.assertEqual(self.run_code("x * 2", "javascript")["result"], "6")

    def test_a_node_sandbox_runs_python_too(self):
        made = self.call("sandbox_create", template="node", flavor="small")
        self.assertEqual((made["template"], made["flavor"], made["network"]), ("node", "small", "none"))
        self.assertEqual(self.run_code("[1].map((n) => n + 1)", "js")["result"], "[ 2 ]")
        self.assertEqual(self.run_code("import numpy; int(numpy.ones(3).sum())", "py")["result"], "3")
        self.call("sandbox_destroy")

    def test_a_program_that_fails_is_a_failure_with_all_its_output(self):
        hint = self.refused("PROGRAM_FAILED", "ZeroDivisionError: division by zero", "code_run", language="python",
                            code="print('before')\n1 / 0")
        self.assertIn("stderr", hint)
        result = self.result("code_run", language="python", code="print('before')\n1 / 0")
        said = result["structuredContent"]
        self.assertEqual((said["stdout"], said["success"]), ("before\n", False))
        self.assertEqual(json.loads(result["content"][0]["text"].split("\n", 2)[2]), said)
        self.refused("TIMED_OUT", "0.3 s", "code_run", language="python", code="while True: pass", timeout=0.3)

    def test_figures_are_images(self):
        result = self.result("code_run", language="python", code="import matplotlib.pyplot as plt\n_ = plt.plot([1])")
        self.assertEqual([block["type"] for block in result["content"]], ["text", "image"])

    def test_files(self):
        written = self.call("file_write", path="site/index.html", content="<h1>été</h1>")
        self.assertEqual((written["path"], written["size"]), ("site/index.html", 14))
        read = self.call("file_read", path="/workspace/site/index.html")
        self.assertEqual((read["content"], read["encoding"], read["size"]), ("<h1>été</h1>", "utf-8", 14))
        self.assertEqual([entry["path"] for entry in self.call("file_list")["entries"]], ["site"])
        self.assertEqual([entry["path"] for entry in self.call("file_list", path="site")["entries"]],
                         ["site/index.html"])
        self.run_code("open('raw', 'wb').write(bytes([255, 0])); open('long', 'w').write('ab' * 100_000)")
        raw = self.call("file_read", path="raw")
        self.assertEqual((raw["encoding"], base64.b64decode(raw["content"])), ("base64", b"\xff\0"))
        long = self.call("file_read", path="long")
        self.assertEqual((long["size"], len(long["content"])), (200_000, 100_000))
        self.assertIn("code_run", long["note"])
        self.assertIn("file_list", self.refused("FILE_NOT_FOUND", 'path="none"', "file_read", path="none"))
        self.refused("PATH_NOT_ALLOWED", 'path="/etc/passwd"', "file_read", path="/etc/passwd")
        self.refused("INVALID_PARAMS", "directory", "file_read", path="site")

    def test_the_current_sandbox_is_the_newest_that_lives(self):
        self.call("file_write", path="first", content="")
        second = self.call("sandbox_create")["sandbox_id"]
        self.assertEqual(self.call("file_list")["total"], 0)
        self.assertEqual(self.call("file_list", sandbox_id=self.sandbox)["total"], 1)
        gone = self.call("sandbox_destroy")
        self.assertEqual((gone["sandbox_id"], gone["current_sandbox_id"]), (second, self.sandbox))
        self.assertEqual(self.call("file_list")["total"], 1)
        self.refused("CONTEXT_NOT_FOUND", second, "file_list", sandbox_id=second)

    def test_contexts_are_sandboxes_too_but_never_the_current_one(self):
        context = self.server.finish(self.server.start_call("create_context", name="other")[1])["structuredContent"]
        self.assertEqual(self.run_code("y = 5; y", sandbox_id="other")["result"], "5")
        self.refused("PROGRAM_FAILED", "NameError", "code_run", language="python", code="y")
        self.call("sandbox_destroy", sandbox_id=context["context_id"])

    def test_without_a_sandbox_the_next_thing_to_do_is_said(self):
        self.call("sandbox_destroy", sandbox_id=self.sandbox)
        for tool, arguments in (("sandbox_destroy", {}), ("browser_snapshot", {}), ("file_list", {}),
                                ("code_run", {"language": "python", "code": "1"})):
            with self.subTest(tool):
                self.assertEqual(self.refused("NO_SANDBOX", "no sandbox", tool, **arguments),
                                 "call sandbox_create first")

    def test_what_cannot_be_done_is_refused(self):
        self.refused("NOT_AVAILABLE", "network.max is none", "sandbox_create", network="open")
        self.refused("INVALID_LANGUAGE", "ruby", "code_run", language="ruby", code="1")
        self.refused("INVALID_PARAMS", "'selector'", "browser_click")
        self.refused("CONTEXT_NOT_FOUND", NOBODY, "browser_goto", url="about:blank", sandbox_id=NOBODY)


if __name__ == "__main__":
    unittest.main()
