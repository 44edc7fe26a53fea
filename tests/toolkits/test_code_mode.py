"""Code mode: code in a sandbox calls the tools of whoever called it."""

import contextlib
import json
import sqlite3
import sys
import unittest

from harness import Api, Case, Server, directory, settle

LOOP = {
    "python": "import tools\nfor n in range(100):\n    tools.cicd.create_github_issue('octo/hello', f'Issue {n}', 'x')\n"
              "print('done')",
    "javascript": "const tools = require('tools');\n"
                  "for (let n = 0; n < 100; n++)\n"
                  "  await tools.cicd.create_github_issue({ repo: 'octo/hello', title: `Issue ${n}`, body: 'x' });\n"
                  "console.log('done')",
}


class CodeMode(Case):
    @classmethod
    def setUpClass(cls):
        cls.api = Api()
        cls.addClassCleanup(cls.api.close)
        place = contextlib.ExitStack()
        cls.addClassCleanup(place.close)
        path = place.enter_context(directory()) / "shop.db"
        with sqlite3.connect(path) as database:
            database.executescript("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT);"
                                   "INSERT INTO users VALUES (1, 'ada'), (2, 'bob');")
        database.close()
        # Listed are the contexts alone: the toolkits are for code.
        cls.arguments = ("--toolsets", "contexts", "--toolkit", "cicd", "--toolkit", "database")
        cls.env = {"GITHUB_API_URL": cls.api.url, "GITHUB_TOKEN": cls.api.token, "DATABASE_URL": f"sqlite://{path}"}
        super().setUpClass()
        cls.contexts = {}

    def run_code(self, language, code, **more):
        if language not in self.contexts:
            self.contexts[language] = self.call("create_context", name=language, language=language)["context_id"]
        return self.call("run_code", context_id=self.contexts[language], code=code, **more)

    def setUp(self):
        self.api.requests.clear()

    def test_a_hundred_calls_and_one_line(self):
        self.assertNotIn("create_github_issue", self.tools())
        for language, code in LOOP.items():
            with self.subTest(language):
                self.api.requests.clear()
                ran = self.run_code(language, code, timeout=120)
                self.assertEqual((ran["stdout"], ran["success"]), ("done\n", True), ran)
                titles = [body["title"] for _, _, _, body in self.api.requests]
                self.assertEqual(titles, [f"Issue {n}" for n in range(100)])

    def test_each_call_is_in_the_access_log(self):
        self.run_code("python", "import tools; tools.cicd.get_repo_issues('octo/logged')")
        logged = lambda: [line for line in self.server.access() if line.get("door") == "code"
                          and line.get("tool") == "get_repo_issues"]
        line = settle(logged, "the call is not logged")[-1]
        self.assertEqual((line["caller"], line["outcome"], line["method"]), ("local", "ok", "tools/call"))

    def test_functions_are_typed_and_documented(self):
        ran = self.run_code("python", "import tools, inspect\nprint(tools.__all__)\n"
                                      "print(inspect.signature(tools.database.query_database))\n"
                                      "print(tools.cicd.create_pr.__doc__.splitlines()[0])")
        self.assertEqual(ran["stdout"].splitlines()[:2],
                         ["['cicd', 'database']", "(query: str, params: list = None) -> object"], ran)
        self.assertIn("Create a pull request", ran["stdout"])
        ran = self.run_code("javascript", "const all = await import('tools');\n"
                                          "console.log(Object.keys(all.database).join(), all.cicd.create_pr.doc.split('\\n')[0])")
        self.assertIn("query_database,insert_data,update_data,get_table_schema Create a pull request", ran["stdout"], ran)

    def test_values_come_back(self):
        ran = self.run_code("python", "import tools\n[row['name'] for row in"
                                      " tools.database.query_database('SELECT name FROM users ORDER BY id')['rows']]")
        self.assertEqual(ran["result"], "['ada', 'bob']", ran)
        ran = self.run_code("javascript", "(await require('tools').database.query_database({ query: 'SELECT 7 AS n' })).rows[0].n")
        self.assertEqual(ran["result"], "7", ran)

    def test_errors_are_exceptions_that_say_what_the_tool_said(self):
        code = {"python": "import tools\ntools.database.query_database('DELETE FROM users')",
                "javascript": "await require('tools').database.query_database({ query: 'DELETE FROM users' })"}
        for language, program in code.items():
            with self.subTest(language):
                ran = self.run_code(language, program)
                self.assertFalse(ran["success"])
                self.assertEqual(ran["error"]["name"], "ToolError")
                self.assertIn("The database refused it: not authorized", ran["error"]["message"])
        ran = self.run_code("python", "import tools\ntry:\n    tools.cicd.get_repo_issues('octo/gone')\n"
                                      "except tools.ToolError as error:\n    print(error)")
        self.assertIn("404 Not Found", ran["stdout"])
        ran = self.run_code("python", "import tools\ntools.cicd.get_repo_issues(repo=5)")
        self.assertIn("'repo' must be a string", ran["error"]["message"])
        ran = self.run_code("javascript", "await require('tools').nobody.nothing()")
        self.assertIn("There is no tool nobody.nothing; there are: cicd.create_github_issue", ran["error"]["message"])

    def test_no_secret_enters_the_sandbox(self):
        ran = self.run_code("python", "import os, tools, gc\n"
                                      "tools.cicd.get_repo_issues('octo/hello')\n"
                                      "everything = repr(dict(os.environ)) + ' '.join(\n"
                                      "    o for o in gc.get_objects() if isinstance(o, str))\n"
                                      "print('token-of-the' + '-operator' in everything, 'GITHUB' in repr(dict(os.environ)))")
        self.assertEqual(ran["stdout"].strip(), "False False", ran)

    def test_a_call_ends_with_its_run(self):
        code = {"python": "import tools\ntools.database.query_database('%s')",
                "javascript": "await require('tools').database.query_database({ query: '%s' })"}
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        for language, program in code.items():
            with self.subTest(language):
                self.run_code(language, "kept = 5")
                ran = self.run_code(language, program % endless, timeout=2)
                self.assertFalse(ran["success"])
                self.assertIn("time limit", ran["notes"][0])
                # The state is kept, and tools can be called again.
                again = self.run_code(language, "kept")
                self.assertEqual(again["result"], "5", again)
                self.assertTrue(self.run_code(language, program % "SELECT 1")["success"])
        cancelled = lambda: [line for line in self.server.access() if line.get("door") == "code"
                             and line.get("outcome") == "cancelled"]
        settle(lambda: len(cancelled()) >= 2, "the calls go on")

    def test_threads_call_at_once(self):
        ran = self.run_code("python", "import tools\nfrom concurrent.futures import ThreadPoolExecutor\n"
                                      "with ThreadPoolExecutor(16) as pool:\n"
                                      "    found = list(pool.map(lambda n: tools.database.query_database("
                                      "f'SELECT {n} AS n')['rows'][0]['n'], range(64)))\n"
                                      "print(found == list(range(64)))", timeout=120)
        self.assertEqual(ran["stdout"].strip(), "True", ran)

    def test_a_run_may_make_so_many_calls_and_no_more(self):
        ran = self.run_code("python", "import tools\nmade = 0\ntry:\n    while True:\n"
                                      "        tools.database.query_database('SELECT 1')\n        made += 1\n"
                                      "except tools.ToolError as error:\n    print(made, error)", timeout=300)
        self.assertRegex(ran["stdout"], r"^(1999|2000) A run may call tools 2000 times", ran)
        self.assertTrue(self.run_code("python", "tools.database.query_database('SELECT 1')")["success"])

    def test_sizes_are_bounded(self):
        ran = self.run_code("python", "import tools\ntools.cicd.get_repo_issues('x' * 2_000_000)")
        self.assertIn("at most 1048576", ran["error"]["message"])


SERVER = """
import os
from fastmcp import FastMCP

server = FastMCP("calc")


@server.tool
def add(a: int, b: int) -> int:
    \"\"\"Add two numbers.\"\"\"
    return a + b


@server.tool
def fail() -> str:
    raise ValueError("no luck with " + os.environ["CALC_KEY"][:3])


server.run(show_banner=False)
"""


class Hub(Case):
    """Tools of another server, through the hub."""

    @classmethod
    def setUpClass(cls):
        place = contextlib.ExitStack()
        cls.addClassCleanup(place.close)
        path = place.enter_context(directory())
        (path / "calc.py").write_text(SERVER)
        server = {"command": sys.executable, "args": [str(path / "calc.py")], "env": {"CALC_KEY": "key-of-the-operator"}}
        (path / "hub.json").write_text(json.dumps({"mcpServers": {"my-calc": server}}))
        cls.arguments = ("--toolsets", "contexts,hub", "--hub", str(path / "hub.json"), "--toolkit", "cicd")
        super().setUpClass()

    def test_both_languages_call_another_server(self):
        settle(lambda: "my-calc__add" in self.tools(), "the server of the hub never answered", 120)
        python = self.call("create_context", name="python")["context_id"]
        ran = self.call("run_code", context_id=python, timeout=120, code=(
            "import tools, os\nprint(tools.__all__, tools.my_calc.add.__doc__.splitlines()[0])\n"
            "print(sum(tools.my_calc.add(n, b=1)['result'] for n in range(20)))\n"
            "try:\n    tools.my_calc.fail()\nexcept tools.ToolError as error:\n    print(error)\n"
            "print('CALC_KEY' in os.environ)"))
        self.assertEqual(ran["stdout"].splitlines()[:2], ["['cicd', 'my_calc'] Add two numbers.", "210"], ran)
        self.assertIn("no luck with key", ran["stdout"])
        self.assertEqual(ran["stdout"].splitlines()[-1], "False")
        node = self.call("create_context", name="node", language="javascript")["context_id"]
        ran = self.call("run_code", context_id=node, timeout=120, code=(
            "const { default: tools } = await import('tools');\n"
            "console.log((await tools.my_calc.add({ a: 2, b: 3 })).result, Object.keys(tools.my_calc).join())"))
        self.assertEqual(ran["stdout"].strip(), "5 add,fail", ran)
        lines = settle(lambda: [line for line in self.server.access() if line.get("door") == "code"], "nothing is logged")
        self.assertIn("my-calc__add", [line["tool"] for line in lines])


class Nothing(unittest.TestCase):
    def test_without_toolkits_there_is_nothing_to_import(self):
        server = Server("--toolsets", "contexts", "--pool-languages", "python")
        self.addCleanup(server.close)
        call = lambda tool, **arguments: server.wait(server.client.call_tool(tool, arguments)).structured_content
        context = call("create_context", name="a")["context_id"]
        ran = call("run_code", context_id=context, code="import tools")
        self.assertEqual(ran["error"]["name"], "ImportError", ran)
        self.assertIn("--toolkit or --hub", json.dumps(ran))


if __name__ == "__main__":
    unittest.main()
