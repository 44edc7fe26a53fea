"""`import tools` in both kernels: this file plays the guest and whoever answers.

    scripts/with-template.sh python3 -m unittest discover -s tests/kernels -p test_tools.py
"""

import json
import os
import shutil
import signal
import struct
import tempfile
import unittest

import test_node_kernel as node
import test_python_kernel as python

CATALOGUE = [
    {"group": "shop", "name": "get_price", "description": "Tell the price of a thing.\n\nIn cents.", "schema": {
        "type": "object", "required": ["thing"], "properties": {
            "currency": {"type": "string", "enum": ["EUR", "USD"], "default": "EUR", "description": "Of the price."},
            "thing": {"type": "string", "description": "What to buy."}}}},
    {"group": "shop", "name": "fail", "description": "Fails.", "schema": {"type": "object", "properties": {}}},
    {"group": "my_server", "name": "echo", "description": "", "schema": {"type": "object"}},
]


def answer(message, body):
    """What the host says to a call: (ok, text)."""
    if message["name"] is None:
        return True, json.dumps(CATALOGUE)
    arguments = json.loads(body)
    if message["name"] == "shop.get_price":
        return True, json.dumps({"thing": arguments["thing"], "price": 100 * len(arguments["thing"])})
    if message["name"] == "my_server.echo":
        return True, json.dumps(arguments)
    if message["name"] == "shop.fail":
        return False, "The shop is closed"
    return False, f"There is no tool {message['name']}"


class Tools:
    """The same for both: self.run(code) with calls answered, self.silent to leave them unanswered."""

    def test_an_answer_may_be_large(self):
        result = self.run_cell(self.ECHO % "'x' * 3000000" if self.PYTHON else self.ECHO % "'x'.repeat(3000000)")
        self.assertEqual(result.out.strip(), "3000000")

    def test_a_hundred_calls_and_one_line(self):
        result = self.run_cell(self.LOOP)
        self.assertEqual(result.out.strip(), "30000")
        self.assertEqual(self.calls, 101 if self.PYTHON else 100)

    def test_an_error_says_what_the_tool_said(self):
        result = self.run_cell(self.FAIL)
        self.assertFalse(result.done["ok"])
        self.assertEqual((result.done["error"]["name"], result.done["error"]["message"]),
                         ("ToolError", "The shop is closed"))
        self.assertIn("The shop is closed", result.err)
        self.assertNotIn("belljar_", result.err)
        self.assertTrue(self.run_cell("print(1)" if self.PYTHON else "console.log(1)").done["ok"])

    def test_an_interrupt_ends_the_wait(self):
        self.run_cell(self.IMPORT)
        self.silent = True
        self.start(self.WAIT)
        while self.calls < 2:  # the catalogue may be one of them
            self.step()
            if not self.PYTHON and self.calls:
                break
        self.interrupt()
        result = self.finish()
        self.assertFalse(result.done["ok"])
        self.assertTrue(result.done["interrupted"])
        self.silent = False
        self.assertEqual(self.run_cell(self.LOOP).out.strip(), "30000")


class PythonTools(Tools, unittest.TestCase):
    PYTHON = True
    IMPORT = "import tools"
    ECHO = "import tools\nprint(len(tools.my_server.echo(text=%s)['text']))"
    LOOP = "import tools\nprint(sum(tools.shop.get_price('abc')['price'] for _ in range(100)))"
    FAIL = "import tools\ntools.shop.fail()"
    WAIT = "import tools\ntools.shop.get_price('abc')"

    @classmethod
    def setUpClass(cls):
        cls.zygote = python.Zygote(preload=[])

    @classmethod
    def tearDownClass(cls):
        cls.zygote.close()

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="belljar-tools-")
        self.addCleanup(shutil.rmtree, self.directory)
        self.guest = python.Guest(self.zygote, cwd=self.directory)
        self.addCleanup(self.guest.close)
        self.calls, self.silent = 0, False
        frame = self.guest.frame

        def answering():
            while True:
                message, body = frame()
                if message["t"] != "tool":
                    return message, body
                self.calls += 1
                if self.silent:
                    return {"t": "display", "id": self.guest.runs, "result": False, "parts": []}, b""
                ok, text = answer(message, body)
                self.send({"t": "answer", "id": message["id"], "number": message["number"], "ok": ok}, text.encode())

        self.guest.frame = answering

    def send(self, head, body=b""):
        head = json.dumps(head).encode()
        self.guest.sock.sendall(struct.pack("<II", 4 + len(head) + len(body), len(head)) + head + body)

    def run_cell(self, code):
        return self.guest.run(code)

    def start(self, code):
        self.guest.start(code)
        self.calls = 1  # it is imported already

    def step(self):
        self.guest.step()

    def interrupt(self):
        self.send({"t": "interrupt", "id": self.guest.runs})
        os.kill(self.guest.pid, signal.SIGINT)

    def finish(self):
        return self.guest.finish()

    def test_functions_have_signatures_and_docs(self):
        result = self.run_cell("import tools, inspect\n"
                               "print(inspect.signature(tools.shop.get_price))\nprint(tools.shop.get_price.__doc__)\n"
                               "print(tools.__all__, tools.shop.__all__)\n"
                               "from tools.shop import get_price as p\nprint(p('ab')['price'], p(thing='a')['price'])")
        self.assertEqual(result.out.splitlines(), [
            "(thing: str, currency: str = 'EUR') -> object",
            "Tell the price of a thing.", "", "In cents.", "", "Args:",
            '    currency (string, optional, one of "EUR", "USD"): Of the price.',
            "    thing (string): What to buy.",
            "['my_server', 'shop'] ['fail', 'get_price']", "200 100"], result.err)

    def test_threads_call_at_the_same_time(self):
        result = self.run_cell(
            "import tools\nfrom concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(8) as pool:\n"
            "    print(sum(r['price'] for r in pool.map(tools.shop.get_price, ['abc'] * 60)))")
        self.assertEqual(result.out.strip(), "18000", result.err)

    def test_a_thread_that_outlives_its_cell_is_told(self):
        self.silent = True
        self.run_cell("import sys\nsys.modules.pop('tools', None)")
        self.silent = False
        self.run_cell("import tools")
        self.silent = True
        result = self.run_cell(
            "import threading\nheard, called = [], threading.Event()\n"
            "def work():\n"
            "    called.set()\n"
            "    try:\n        tools.shop.get_price('abc')\n"
            "    except Exception as error:\n        heard.append(str(error))\n"
            "thread = threading.Thread(target=work)\nthread.start()\ncalled.wait()")
        self.assertTrue(result.done["ok"], result.err)
        self.silent = False
        result = self.run_cell("thread.join()\nprint(heard)\nprint(tools.shop.get_price('a')['price'])")
        self.assertIn("ended", result.out)
        self.assertEqual(result.out.splitlines()[-1], "100", result.err)

    def test_a_module_of_the_users_own_comes_first(self):
        with open(os.path.join(self.directory, "tools.py"), "w") as file:
            file.write("mine = 5\n")
        result = self.run_cell(f"import sys\nsys.path.insert(0, {self.directory!r})\nimport tools\nprint(tools.mine)")
        self.assertEqual((result.out.strip(), self.calls), ("5", 0), result.err)

    def test_a_forked_child_cannot_call(self):
        result = self.run_cell("import tools, os, sys\npid = os.fork()\n"
                               "if pid == 0:\n"
                               "    try:\n        tools.shop.get_price('a')\n"
                               "    except tools.ToolError as error:\n        print(error, flush=True)\n"
                               "    os._exit(0)\n"
                               "os.waitpid(pid, 0)\nprint(tools.shop.get_price('a')['price'])")
        self.assertIn("not from another process", result.out)
        self.assertEqual(result.out.splitlines()[-1], "100", result.err)

    def test_what_is_no_json_is_refused_here(self):
        result = self.run_cell("import tools\ntools.my_server.echo(text=object())")
        self.assertEqual(result.error, "ToolError")
        self.assertIn("cannot be written as JSON", result.err)


@unittest.skipUnless(node.NODE, "no node")
class NodeTools(Tools, unittest.TestCase):
    PYTHON = False
    IMPORT = "const tools = require('tools')"
    ECHO = "console.log((await require('tools').my_server.echo({ text: %s })).text.length)"
    LOOP = ("const t = require('tools'); let sum = 0;\n"
            "for (let i = 0; i < 100; i++) sum += (await t.shop.get_price({ thing: 'abc' })).price;\nconsole.log(sum)")
    FAIL = "await require('tools').shop.fail()"
    WAIT = "await require('tools').shop.get_price({ thing: 'abc' })"

    def setUp(self):
        self.directory = os.path.realpath(tempfile.mkdtemp(prefix="belljar-tools-"))
        self.addCleanup(shutil.rmtree, self.directory)
        self.kernel = node.Kernel(self.directory)
        self.addCleanup(self.kernel.close)
        self.calls, self.silent = 0, False
        frame = self.kernel.frame

        def answering(timeout):
            while True:
                head, body = frame(timeout)
                if head["t"] != "tool":
                    return head, body
                self.calls += 1
                if self.silent:
                    return {"t": "display", "id": self.kernel.next_id, "result": False, "parts": []}, b""
                ok, text = answer(head, body)
                head = {"t": "answer", "id": head["id"], "number": head["number"], "ok": ok}
                self.kernel.send(head, text.encode())

        self.kernel.frame = answering

    def run_cell(self, code):
        return self.kernel.run(code, 30)

    def start(self, code):
        self.calls = 0
        self.kernel.start(code)

    def step(self):
        self.kernel.frame(30)

    def interrupt(self):
        self.kernel.interrupt()

    def finish(self):
        return self.kernel.finish(30)

    def test_import_knows_what_there_is(self):
        result = self.run_cell("const all = await import('tools');\n"
                               "console.log(Object.keys(all.default), Object.keys(all.shop));\n"
                               "console.log(all.shop.get_price.doc);\n"
                               "console.log((await all.shop.get_price({ thing: 'ab' })).price)")
        self.assertEqual(result.out.splitlines(), [
            "[ 'shop', 'my_server' ] [ 'get_price', 'fail' ]",
            "Tell the price of a thing.", "", "In cents.", "",
            "  currency?: string  Of the price.", "  thing: string  What to buy.", "200"], result.err)

    def test_calls_at_the_same_time(self):
        result = self.run_cell("import tools from 'tools';\n"
                               "const all = await Promise.all(Array.from({ length: 40 }, "
                               "() => tools.shop.get_price({ thing: 'abc' })));\n"
                               "console.log(all.reduce((sum, r) => sum + r.price, 0))")
        self.assertEqual(result.out.strip(), "12000", result.err)

    def test_a_module_of_the_users_own_comes_first(self):
        os.makedirs(os.path.join(self.directory, "node_modules/tools"))
        with open(os.path.join(self.directory, "node_modules/tools/index.js"), "w") as file:
            file.write("module.exports = { mine: 5 };\n")
        result = self.run_cell("console.log(require('tools').mine, (await import('tools')).default.mine)")
        self.assertEqual((result.out.strip(), self.calls), ("5 5", 0), result.err)

    def test_a_tool_that_is_not_there(self):
        result = self.run_cell("await require('tools').shop.nothing()")
        self.assertEqual(result.done["error"]["message"], "There is no tool shop.nothing")


if __name__ == "__main__":
    unittest.main()
