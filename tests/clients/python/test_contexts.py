"""Every tool of the toolset `contexts`, through the public Python client, in both eras of the protocol."""

import base64
import hashlib
import json
import re
import subprocess
import time
import unittest

import mcp_types
from harness import BELLJAR, MODERN, PATIENCE, SdkTestCase, environment, wait_until
from mcp.shared.exceptions import MCPError

ID = re.compile(r"ctx-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
TOOLS = {
    "create_context": {"name"},
    "run_code": {"code", "context_id"},
    "stop_context": {"context_id"},
    "list_contexts": set(),
    "upload_file": {"context_id", "path", "content"},
    "download_file": {"context_id", "path"},
    "list_files": {"context_id"},
}
NOBODY = "ctx-00000000-0000-4000-8000-000000000000"
RAN = {"stdout", "stderr", "success", "execution_time"}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Contexts:
    """Run by the classes below, once for each era."""

    # Listing

    def test_the_server_introduces_itself(self):
        self.assertEqual(self.client.server_info.name, "belljar")
        self.assertIn("create_context", self.client.instructions)
        self.assertIsNotNone(self.client.server_capabilities.tools)
        self.assertIsNotNone(self.client.server_capabilities.resources)

    def test_the_tools_are_the_toolset(self):
        tools = self.server.wait(self.client.list_tools(cache_mode="refresh")).tools
        self.assertEqual({tool.name: set(tool.input_schema.get("required", [])) for tool in tools}, TOOLS)
        for tool in tools:
            with self.subTest(tool.name):
                self.assertTrue(tool.title)
                self.assertGreater(len(tool.description), 50)
                self.assertEqual(tool.input_schema["type"], "object")
                self.assertEqual(tool.output_schema["type"], "object")
                notes = tool.annotations
                for hint in (notes.read_only_hint, notes.destructive_hint, notes.idempotent_hint, notes.open_world_hint):
                    self.assertIsNotNone(hint)
        again = self.server.wait(self.client.list_tools(cache_mode="refresh")).tools
        self.assertEqual([tool.model_dump() for tool in tools], [tool.model_dump() for tool in again])

    def test_descriptions_state_the_expiry_of_ids(self):
        tools = {tool.name: tool for tool in self.server.wait(self.client.list_tools()).tools}
        for name in ("create_context", "run_code", "list_contexts"):
            self.assertIn("60 minutes", tools[name].description)

    def test_an_unknown_tool_is_a_protocol_error(self):
        with self.assertRaises(MCPError) as caught:
            self.server.wait(self.client.call_tool("make_coffee", {}))
        self.assertEqual(caught.exception.code, -32602)
        self.assertIn("make_coffee", caught.exception.message)

    # create_context

    def test_create_returns_what_was_agreed(self):
        result = self.result("create_context", name="agreed", description="for a test")
        made = result.structured_content
        self.addCleanup(self.stop_quietly, made["context_id"])
        self.assertEqual(
            set(made), {"context_id", "name", "language", "description", "created_at", "status", "message"})
        self.assertRegex(made["context_id"], ID)
        self.assertRegex(made["created_at"], ISO)
        self.assertEqual((made["name"], made["language"], made["description"], made["status"]),
                         ("agreed", "python", "for a test", "active"))
        self.assertIn("agreed", made["message"])
        self.assertEqual([block.type for block in result.content], ["text"])
        self.assertEqual(json.loads(result.content[0].text), made)

    def test_create_javascript_and_defaults(self):
        made = self.call("create_context", name="js", language="javascript")
        self.addCleanup(self.stop_quietly, made["context_id"])
        self.assertEqual((made["language"], made["description"]), ("javascript", ""))
        made = self.call("create_context", name="nulls", language=None, description=None)
        self.addCleanup(self.stop_quietly, made["context_id"])
        self.assertEqual((made["language"], made["description"]), ("python", ""))

    def test_create_refuses_what_it_cannot_use(self):
        self.refused("INVALID_PARAMS", "create_context")
        self.refused("INVALID_PARAMS", "create_context", name=7)
        self.refused("INVALID_PARAMS", "create_context", name="x", description="d" * 2000)
        self.refused("INVALID_PARAMS", "create_context", name="x", language=3)
        for name in ("", "   ", "-dash-first", "semi;colon", "new\nline", "nul\0", "x" * 101, "<b>", "a\u202eb"):
            with self.subTest(name=name):
                self.refused("INVALID_CONTEXT_NAME", "create_context", name=name)
        for language in ("ruby", "Python", "", "py\0"):
            with self.subTest(language=language):
                self.refused("INVALID_LANGUAGE", "create_context", name="x", language=language)

    def test_ids_are_never_repeated(self):
        ids = [self.context(name="same") for _ in range(5)]
        self.assertEqual(len(set(ids)), 5)

    # run_code: the plain things

    def test_run_returns_what_was_agreed(self):
        context = self.context()
        result = self.result("run_code", context_id=context, code="print('hello')")
        ran = result.structured_content
        self.assertEqual(set(ran), RAN)
        self.assertEqual((ran["stdout"], ran["stderr"], ran["success"]), ("hello\n", "", True))
        self.assertGreater(ran["execution_time"], 0)
        self.assertLess(ran["execution_time"], 5)
        self.assertEqual([block.type for block in result.content], ["text"])
        self.assertEqual(json.loads(result.content[0].text), ran)
        ran = self.run_code(context, "6 * 7")
        self.assertEqual((set(ran), ran["result"], ran["stdout"]), (RAN | {"result"}, "42", ""))
        self.assertEqual(set(self.run_code(context, "6 * 7;")), RAN)
        self.assertEqual(set(self.run_code(context, "")), RAN)
        self.assertEqual(set(self.run_code(context, "# nothing")), RAN)

    def test_run_refuses_what_it_cannot_use(self):
        context = self.context()
        self.assertIn("context_id", self.refused("INVALID_PARAMS", "run_code", code="1"))
        self.assertIn("code", self.refused("INVALID_PARAMS", "run_code", context_id=context))
        self.refused("INVALID_PARAMS", "run_code", context_id=context, code=["1"])
        self.refused("INVALID_PARAMS", "run_code", context_id=5, code="1")
        for timeout in (0, -1, 1e9, "soon"):
            with self.subTest(timeout=timeout):
                self.refused("INVALID_PARAMS", "run_code", context_id=context, code="1", timeout=timeout)
        self.assertIn(NOBODY, self.refused("CONTEXT_NOT_FOUND", "run_code", context_id=NOBODY, code="1"))
        self.refused("CONTEXT_NOT_FOUND", "run_code", context_id="", code="1")
        self.assertEqual(self.value(context, "1"), "1")

    def test_state_persists(self):
        context = self.context()
        self.run_code(context, "import math\nx = 40\ndef add(n):\n    return x + n\nclass Point:\n    y = 3")
        self.assertEqual(self.value(context, "add(2), math.floor(2.5), Point.y"), "(42, 2, 3)")
        self.assertEqual(self.value(context, "x += 1\nx"), "41")
        self.assertEqual(self.value(context, "_"), "41")
        self.run_code(context, "open('note.txt', 'w').write('kept')")
        self.assertEqual(self.value(context, "import os\nos.getcwd(), open('/workspace/note.txt').read()"),
                         "('/workspace', 'kept')")

    def test_contexts_do_not_see_each_other(self):
        one, two = self.context(), self.context()
        self.run_code(one, "secret = 1\nopen('/workspace/a', 'w').write('x')\nopen('/tmp/a', 'w').write('x')")
        ran = self.run_code(two, "secret")
        self.assertFalse(ran["success"])
        self.assertEqual(ran["error"]["name"], "NameError")
        self.assertEqual(self.value(two, "import os\nos.listdir('/workspace'), os.path.exists('/tmp/a')"), "([], False)")
        seen = "import os\nsorted(int(p) for p in os.listdir('/proc') if p.isdigit())"
        self.assertLess(len(json.loads(self.value(two, seen))), 6)
        self.assertEqual(self.value(one, "secret"), "1")

    def test_a_name_does_as_well_as_an_id(self):
        name = f"by name {self.mode}"
        context = self.context(name=name)
        self.assertEqual(self.value(name, "x = 5\nx"), "5")
        self.assertEqual(self.value(context, "x"), "5")
        self.call("upload_file", context_id=name, path="a", content="1")
        self.assertEqual(self.call("list_files", context_id=name)["total"], 1)
        twin = self.context(name=name)
        message = self.refused("AMBIGUOUS_NAME", "run_code", context_id=name, code="1")
        self.assertIn(context, message)
        self.assertIn(twin, message)
        for tool, more in (("stop_context", {}), ("list_files", {}), ("download_file", {"path": "a"})):
            self.refused("AMBIGUOUS_NAME", tool, context_id=name, **more)
        self.assertEqual(self.call("stop_context", context_id=twin)["context_id"], twin)
        self.assertEqual(self.value(name, "x"), "5")

    # run_code: notebook semantics

    def test_a_failing_program_is_a_successful_call(self):
        context = self.context()
        ran = self.run_code(context, "def inner():\n    return 1 / 0\n\ndef outer():\n    inner()\n\nprint('before')\nouter()")
        self.assertEqual(set(ran), RAN | {"error"})
        self.assertFalse(ran["success"])
        self.assertEqual(ran["stdout"], "before\n")
        self.assertEqual(ran["error"], {"name": "ZeroDivisionError", "message": "division by zero"})
        lines = ran["stderr"].splitlines()
        self.assertEqual(lines[0], "Traceback (most recent call last):")
        self.assertEqual(lines[-1], "ZeroDivisionError: division by zero")
        frames = [line for line in lines if line.startswith("  File ")]
        self.assertEqual(len(frames), 3, ran["stderr"])
        self.assertIn("return 1 / 0", ran["stderr"])
        for ours in ("belljar", "IPython", "site-packages", "\x1b["):
            self.assertNotIn(ours, ran["stderr"])
        self.assertEqual(self.value(context, "'still here'"), "'still here'")

    def test_other_failures_are_clean_too(self):
        context = self.context()
        for code, name in (
            ("x = (", "SyntaxError"),
            ("  x = 1\n y = 2", "IndentationError"),
            ("undefined_name", "NameError"),
            ("import no_such_module", "ModuleNotFoundError"),
            ("try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('v') from e", "ValueError"),
            ("def f(): f()\nf()", "RecursionError"),
            ("raise KeyboardInterrupt", "KeyboardInterrupt"),
            ("import sys\nsys.exit(3)", "SystemExit"),
            ("await __import__('asyncio').sleep('x')", "TypeError"),
            ("raise ExceptionGroup('g', [ValueError(1)])" if self.value(
                context, "import sys\nsys.version_info >= (3, 11)") == "True" else "raise ValueError", None),
        ):
            with self.subTest(code):
                ran = self.run_code(context, code)
                self.assertFalse(ran["success"], ran)
                if name:
                    self.assertEqual(ran["error"]["name"], name)
                self.assertIn(ran["error"]["name"], ran["stderr"])
                self.assertNotIn("belljar", ran["stderr"])
                self.assertNotIn("IPython", ran["stderr"])
                self.assertLess(len(ran["stderr"]), 30_000)
        self.assertEqual(self.value(context, "1"), "1")

    def test_both_streams_with_subprocesses_and_c_code(self):
        context = self.context()
        ran = self.run_code(context, "\n".join([
            "import ctypes, os, subprocess, sys",
            "print('print'); print('print-err', file=sys.stderr)",
            "os.write(1, b'write\\n'); os.write(2, b'write-err\\n')",
            "os.system('echo system; echo system-err >&2')",
            "subprocess.run(['echo', 'subprocess'])",
            "libc = ctypes.CDLL(None); libc.puts(b'puts'); libc.fflush(None);",
        ]))
        self.assertEqual(ran["stdout"].split(), ["print", "write", "system", "subprocess", "puts"])
        self.assertEqual(ran["stderr"].split(), ["print-err", "write-err", "system-err"])
        self.assertTrue(ran["success"])

    def test_text_of_all_kinds(self):
        context = self.context()
        ran = self.run_code(context, "print('äöü 日本 😀 \\x1b[1m \\x00 \\r')\n'日本'")
        self.assertEqual(ran["stdout"], "äöü 日本 😀 \x1b[1m \x00 \r\n")
        self.assertEqual(ran["result"], "'日本'")
        ran = self.run_code(context, "import os\nos.write(1, b'\\xff\\xfe ok\\n');")
        self.assertTrue(ran["stdout"].endswith(" ok\n"), ran)
        self.assertTrue(self.run_code(context, "print('\\ud800')")["success"])

    def test_top_level_await(self):
        context = self.context()
        self.assertEqual(self.value(context, "import asyncio\nawait asyncio.sleep(0.01, 'slept')"), "'slept'")
        self.run_code(context, "async def later(n):\n    await asyncio.sleep(0.05)\n    return n\ntask = asyncio.ensure_future(later(7))"
                               "\nawait asyncio.sleep(0)")
        self.assertEqual(self.value(context, "await task"), "7")
        self.assertEqual(self.value(context, "await asyncio.gather(later(1), later(2))"), "[1, 2]")

    def test_shell_commands_and_magics(self):
        context = self.context()
        self.assertEqual(self.run_code(context, "!echo one && echo two >&2")["stdout"], "one\n")
        self.assertEqual(self.value(context, "name = 'bell'\nout = !echo {name} jar\nlist(out)"), "['bell jar']")
        self.assertIn("name", self.run_code(context, "%who")["stdout"])
        self.assertIn("loop", self.run_code(context, "%timeit -n 2 -r 2 pass")["stdout"])
        self.assertEqual(self.run_code(context, "%%bash\nx=5\necho $((x + 1))")["stdout"], "6\n")
        ran = self.run_code(context, "%%time\n1 + 1")
        self.assertTrue(ran["success"])
        ran = self.run_code(context, "%nosuchmagic")
        self.assertFalse(ran["success"])
        self.assertIn("nosuchmagic", ran["stderr"])

    def test_there_is_nobody_to_ask(self):
        context = self.context()
        ran = self.run_code(context, "input('name? ')", timeout=5)
        self.assertFalse(ran["success"])
        self.assertIn("input()", ran["stderr"])
        self.assertEqual(self.value(context, "import sys\nsys.stdin.read()"), "''")
        self.assertEqual(self.run_code(context, "!cat; echo done", timeout=5)["stdout"], "done\n")

    def test_there_is_no_network(self):
        context = self.context()
        ran = self.run_code(context, "import socket\nsocket.create_connection(('1.1.1.1', 53), timeout=3)", timeout=10)
        self.assertFalse(ran["success"])
        self.assertLess(ran["execution_time"], 3)
        ran = self.run_code(context, "import socket\nsocket.getaddrinfo('example.com', 80)", timeout=10)
        self.assertFalse(ran["success"])
        self.assertLess(ran["execution_time"], 9)

    def test_the_libraries_are_there(self):
        context = self.context()
        names = "numpy, pandas, matplotlib, scipy, sklearn, requests, PIL, openpyxl, sympy"
        self.assertEqual(self.value(context, f"import {names}\nlen(({names}))"), "9")
        self.assertEqual(self.value(context, "import numpy as np\nnp.arange(5).mean()"), "np.float64(2.0)")
        code = ("from sklearn.linear_model import LinearRegression\n"
                "round(float(LinearRegression().fit([[0], [1], [2]], [1, 3, 5]).coef_[0]), 6)")
        self.assertEqual(self.value(context, code), "2.0")
        self.assertEqual(self.value(context, "import pandas as pd\npd.DataFrame({'a': [1]}).to_excel('t.xlsx')\n"
                                             "pd.read_excel('t.xlsx').shape"), "(1, 2)")

    # run_code: rich results

    def test_a_figure_becomes_an_image_once(self):
        context = self.context()
        plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.title('t')"
        for code in (plot + ";", plot + "\nplt.show()", plot + "\nplt.gcf()",
                     "fig, ax = plt.subplots()\nax.plot([1, 2])\nfig"):
            with self.subTest(code):
                result = self.result("run_code", context_id=context, code=code)
                images = [block for block in result.content if block.type == "image"]
                self.assertEqual(len(images), 1, result.structured_content)
                self.assertEqual(images[0].mime_type, "image/png")
                data = base64.b64decode(images[0].data, validate=True)
                self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
                outputs = [o for o in result.structured_content["outputs"] if o["mime"] == "image/png"]
                self.assertEqual([(o["image"], o["bytes"]) for o in outputs], [(1, len(data))])
        result = self.result("run_code", context_id=context, code="1")
        self.assertEqual([block.type for block in result.content], ["text"])

    def test_many_images_are_bounded(self):
        context = self.context()
        code = "from PIL import Image\nfor n in range(15):\n    display(Image.new('RGB', (8, 8), (n, 0, 0)))"
        result = self.result("run_code", context_id=context, code=code)
        self.assertEqual(sum(block.type == "image" for block in result.content), 10)
        self.assertEqual(len(result.structured_content["outputs"]), 15)
        self.assertIn("note", result.structured_content["outputs"][-1])

    def test_a_table_keeps_a_text_and_a_rich_form(self):
        context = self.context()
        ran = self.run_code(context, "import pandas as pd\npd.DataFrame({'name': ['Ada', 'Bob'], 'age': [36, 41]})")
        self.assertEqual(ran["result"].split(), "name age 0 Ada 36 1 Bob 41".split())
        html = [output for output in ran["outputs"] if output["mime"] == "text/html"]
        self.assertEqual(len(html), 1)
        self.assertIn("<table", html[0]["text"])
        self.assertIn("<td>Ada</td>", html[0]["text"])

    def test_html_json_and_text_displays(self):
        context = self.context()
        ran = self.run_code(context, "from IPython.display import HTML, JSON\ndisplay(HTML('<b>x</b>'))\ndisplay({'plain': 1})\n"
                                     "JSON({'a': [1, 2]})")
        outputs = {output["mime"]: output for output in ran["outputs"]}
        self.assertEqual(outputs["text/html"]["text"], "<b>x</b>")
        self.assertEqual(json.loads(outputs["application/json"]["text"]), {"a": [1, 2]})
        self.assertEqual(outputs["text/plain"]["text"], "{'plain': 1}")
        self.assertIn("$", self.run_code(context, "import sympy\nsympy.sqrt(8)")["outputs"][0]["text"])

    # run_code: limits

    def test_the_time_limit_interrupts_and_keeps_variables(self):
        context = self.context()
        self.run_code(context, "kept = 'yes'")
        for code in (
            "while True: pass",
            "import time\ntime.sleep(60)",
            "!sleep 60",
            "import asyncio\nawait asyncio.sleep(60)",
            "import subprocess\nsubprocess.run(['sleep', '60'])",
            "import threading\nthreading.Event().wait()",
            "while True:\n    try:\n        time.sleep(60)\n    except Exception:\n        pass",
        ):
            with self.subTest(code):
                began = time.monotonic()
                ran = self.run_code(context, f"print('begun', flush=True)\n{code}", timeout=1, wait=15)
                self.assertLess(time.monotonic() - began, 4 * PATIENCE)
                self.assertGreaterEqual(ran["execution_time"], 0.9)
                self.assertFalse(ran["success"])
                self.assertEqual(ran["stdout"], "begun\n")
                self.assertIn("time limit", " ".join(ran["notes"]))
                self.assertIn("kept", " ".join(ran["notes"]))
                self.assertEqual(self.value(context, "kept"), "'yes'")

    def test_code_that_ignores_the_interrupt_loses_its_state_but_not_its_files(self):
        context = self.context()
        self.run_code(context, "kept = 'no'\nopen('file', 'w').write('yes')")
        code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
        ran = self.run_code(context, code, timeout=1, wait=20)
        self.assertFalse(ran["success"])
        self.assertIn("gone", " ".join(ran["notes"]))
        self.assertEqual(self.run_code(context, "kept")["error"]["name"], "NameError")
        self.assertEqual(self.value(context, "open('file').read()"), "'yes'")

    def test_cancelling_a_call_interrupts_it(self):
        context = self.context()
        self.run_code(context, "kept = 'yes'\nimport time")
        for code in ("time.sleep(60)", "while True: pass"):
            with self.subTest(code):
                future = self.start("run_code", context_id=context, code=code)
                time.sleep(0.5)
                future.cancel()
                began = time.monotonic()
                self.assertEqual(self.value(context, "kept", wait=10), "'yes'")
                self.assertLess(time.monotonic() - began, 3 * PATIENCE)

    def test_a_cancelled_call_that_waits_its_turn_never_runs(self):
        context = self.context()
        first = self.start("run_code", context_id=context, code="import time\nran = []\ntime.sleep(1.5)")
        time.sleep(0.2)
        second = self.start("run_code", context_id=context, code="ran.append(2)")
        time.sleep(0.2)
        second.cancel()
        self.finish(first)
        self.assertEqual(self.value(context, "ran"), "[]")

    def test_progress_tells_what_was_printed(self):
        context, seen = self.context(), []

        async def progress(progress, total, message):
            seen.append((progress, message))

        code = "import time\nfor n in range(6):\n    print('step', n, flush=True)\n    time.sleep(0.3)"
        result = self.finish(self.start("run_code", progress=progress, context_id=context, code=code))
        self.assertEqual(result.structured_content["stdout"].count("step"), 6)
        self.assertGreaterEqual(len(seen), 3)
        self.assertLessEqual(len(seen), 12)
        moments = [moment for moment, _ in seen]
        self.assertEqual(moments, sorted(set(moments)))
        self.assertTrue(any("step 1" in message for _, message in seen), seen)

    def test_progress_comes_even_in_silence(self):
        context, seen = self.context(), []

        async def progress(progress, total, message):
            seen.append(message)

        self.finish(self.start("run_code", progress=progress, context_id=context, code="import time\ntime.sleep(6.5)"))
        self.assertTrue(seen)

    def test_runs_in_one_context_keep_their_order(self):
        context = self.context()
        self.run_code(context, "import time\norder = []")
        code = "time.sleep(0.05)\norder.append({})"
        futures = [self.start("run_code", context_id=context, code=code.format(n)) for n in range(8)]
        for future in futures:
            self.finish(future)
        self.assertEqual(self.value(context, "order"), str(list(range(8))))

    def test_contexts_run_at_the_same_time(self):
        contexts = [self.context() for _ in range(4)]
        began = time.monotonic()
        futures = [self.start("run_code", context_id=context, code="import time\ntime.sleep(1)") for context in contexts]
        for future in futures:
            self.finish(future)
        self.assertLess(time.monotonic() - began, 2.5 * PATIENCE)

    # run_code: long output

    def test_long_output_is_cut_and_kept(self):
        context = self.context()
        result = self.result("run_code", context_id=context, code="for n in range(300_000): print(f'{n:09}')")
        ran = result.structured_content
        whole = "".join(f"{n:09}\n" for n in range(300_000)).encode()
        self.assertTrue(ran["success"])
        self.assertLess(len(ran["stdout"]), 101_000)
        self.assertGreater(len(ran["stdout"]), 90_000)
        self.assertTrue(ran["stdout"].startswith("000000000\n000000001\n"))
        self.assertTrue(ran["stdout"].endswith("000299998\n000299999\n"))
        cut = ran["stdout_truncated"]
        self.assertEqual(cut["total_bytes"], len(whole))
        self.assertLessEqual(cut["shown_bytes"], 100_000)
        self.assertIn(cut["full_output"], ran["stdout"])

        links = [block for block in result.content if block.type == "resource_link"]
        self.assertEqual([str(link.uri) for link in links], [cut["resource"]])
        self.assertEqual(links[0].size, len(whole))
        contents = self.server.wait(self.client.read_resource(cut["resource"])).contents
        self.assertEqual(contents[0].text.encode(), whole)

        self.assertEqual(self.value(context, f"import os\nos.path.getsize({cut['full_output']!r})"), str(len(whole)))
        result = self.result("download_file", context_id=context, path=cut["full_output"])
        got = result.structured_content
        self.assertEqual((got["size"], got["sha256"]), (len(whole), sha256(whole)))
        self.assertNotIn("content", got)
        self.assertEqual([block.type for block in result.content], ["text", "resource_link"])

    def test_one_loud_stream_does_not_silence_the_other(self):
        context = self.context()
        ran = self.run_code(context, "import sys\nprint('x' * 3_000_000)\nprint('but see this', file=sys.stderr)")
        self.assertEqual(ran["stderr"], "but see this\n")
        self.assertIn("stdout_truncated", ran)
        ran = self.run_code(context, "print('o' * 500_000)\nprint('e' * 500_000, file=sys.stderr)\n1 / 0")
        self.assertIn("stderr_truncated", ran)
        self.assertTrue(ran["stderr"].endswith("ZeroDivisionError: division by zero\n"))
        self.assertLess(len(ran["stdout"]) + len(ran["stderr"]), 102_000)

    def test_a_large_value_is_clipped(self):
        context = self.context()
        ran = self.run_code(context, "'v' * 1_000_000")
        self.assertLess(len(ran["result"]), 25_000)
        self.assertTrue(ran["notes"])

    # Files

    def test_files_go_in_and_out(self):
        context = self.context()
        for path, data in (("text.txt", "grüße\n".encode()), ("deep/er/data.bin", bytes(range(256)) * 40), ("empty", b"")):
            with self.subTest(path):
                encoding = "base64"
                content = base64.b64encode(data).decode()
                if path == "text.txt":
                    encoding, content = "utf-8", data.decode()
                sent = self.call("upload_file", context_id=context, path=path, content=content, encoding=encoding)
                self.assertEqual(sent, {"path": path, "size": len(data), "sha256": sha256(data)})
                self.assertEqual(self.value(context, f"import hashlib\nhashlib.sha256(open({path!r}, 'rb').read()).hexdigest()"),
                                 repr(sha256(data)))
                got = self.call("download_file", context_id=context, path=path, encoding="base64")
                self.assertEqual(base64.b64decode(got.pop("content")), data)
                self.assertEqual(got, {"path": path, "size": len(data), "sha256": sha256(data), "encoding": "base64"})
        got = self.call("download_file", context_id=context, path="text.txt")
        self.assertEqual((got["encoding"], got["content"]), ("utf-8", "grüße\n"))
        got = self.call("download_file", context_id=context, path="/workspace/deep/er/data.bin")
        self.assertEqual((got["path"], got["encoding"]), ("deep/er/data.bin", "base64"))
        self.refused("INVALID_PARAMS", "download_file", context_id=context, path="deep/er/data.bin", encoding="utf-8")

    def test_uploads_replace_and_code_can_change_them(self):
        context = self.context()
        self.call("upload_file", context_id=context, path="a", content="a long first version")
        self.call("upload_file", context_id=context, path="a", content="short")
        self.assertEqual(self.call("download_file", context_id=context, path="a")["content"], "short")
        self.assertTrue(self.run_code(context, "open('a', 'a').write('er')\nimport os\nos.remove('a')\nopen('a', 'w').write('new')")["success"])
        self.assertEqual(self.call("download_file", context_id=context, path="a")["content"], "new")
        sent = self.call("upload_file", context_id=context, path="/tmp/scratch", content="t")
        self.assertEqual(sent["path"], "/tmp/scratch")
        self.assertEqual(self.value(context, "open('/tmp/scratch').read()"), "'t'")

    def test_large_files_go_through(self):
        context = self.context()
        data = bytes(range(256)) * (9_000_000 // 256)
        sent = self.call("upload_file", context_id=context, path="big.bin", content=base64.b64encode(data).decode(),
                         encoding="base64")
        self.assertEqual((sent["size"], sent["sha256"]), (len(data), sha256(data)))
        got = self.call("download_file", context_id=context, path="big.bin")
        self.assertEqual((got["size"], got["sha256"]), (len(data), sha256(data)))
        self.assertNotIn("content", got)
        self.assertIn("note", got)
        self.refused("LIMIT_EXCEEDED", "upload_file", context_id=context, path="too-big", content="x" * (11 << 20))

    def test_file_tools_refuse_what_they_cannot_use(self):
        context = self.context()
        self.run_code(context, "import os\nos.mkdir('dir')\nos.symlink('/etc/passwd', 'out')\nos.symlink('/', 'root')\nos.mkfifo('pipe')")
        for path in ("missing", "dir/missing", "/workspace/missing", "/tmp/missing"):
            self.assertIn("missing", self.refused("FILE_NOT_FOUND", "download_file", context_id=context, path=path))
        self.refused("FILE_NOT_FOUND", "list_files", context_id=context, path="missing")
        for path in ("/etc/passwd", "../etc/passwd", "/workspace/../etc/passwd", "out", "root/etc/passwd", "nul\0", "/proc/self/environ"):
            with self.subTest(path):
                self.refused("PATH_NOT_ALLOWED", "download_file", context_id=context, path=path)
                self.refused("PATH_NOT_ALLOWED", "upload_file", context_id=context, path=path, content="x")
        self.refused("PATH_NOT_ALLOWED", "list_files", context_id=context, path="/")
        self.refused("PATH_NOT_ALLOWED", "list_files", context_id=context, path="root")
        self.refused("INVALID_PARAMS", "download_file", context_id=context, path="dir")
        self.refused("INVALID_PARAMS", "upload_file", context_id=context, path="dir", content="x")
        self.refused("INVALID_PARAMS", "download_file", context_id=context, path="pipe")
        self.refused("INVALID_PARAMS", "upload_file", context_id=context, path="a", content="not base64!", encoding="base64")
        self.refused("INVALID_PARAMS", "upload_file", context_id=context, path="a", content="x", encoding="latin-1")
        self.refused("INVALID_PARAMS", "upload_file", context_id=context, path="a")
        self.refused("INVALID_PARAMS", "download_file", context_id=context)
        for tool, more in (("upload_file", {"path": "a", "content": "x"}), ("download_file", {"path": "a"}), ("list_files", {})):
            self.refused("INVALID_PARAMS", tool, **more)
            self.refused("CONTEXT_NOT_FOUND", tool, context_id=NOBODY, **more)

    def test_files_are_listed(self):
        context = self.context()
        self.assertEqual(self.call("list_files", context_id=context), {"entries": [], "total": 0})
        self.call("upload_file", context_id=context, path="b.txt", content="12345")
        self.call("upload_file", context_id=context, path="a/inner/c.txt", content="1")
        self.run_code(context, "import os\nos.symlink('b.txt', 'link')")
        flat = self.call("list_files", context_id=context)
        self.assertEqual([(e["path"], e["type"]) for e in flat["entries"]],
                         [("a", "directory"), ("b.txt", "file"), ("link", "symlink")])
        self.assertEqual(flat["total"], 3)
        for entry in flat["entries"]:
            self.assertEqual(set(entry), {"path", "type", "size", "modified"})
            self.assertRegex(entry["modified"], ISO)
        self.assertEqual(flat["entries"][1]["size"], 5)
        deep = self.call("list_files", context_id=context, path="/workspace", recursive=True)
        self.assertEqual([e["path"] for e in deep["entries"]], ["a", "a/inner", "a/inner/c.txt", "b.txt", "link"])
        self.assertEqual([e["path"] for e in self.call("list_files", context_id=context, path="a")["entries"]], ["a/inner"])

    def test_file_tools_answer_while_code_runs(self):
        context = self.context()
        future = self.start("run_code", context_id=context, code="import time\nwhile True: time.sleep(0.1)", timeout=5)
        time.sleep(0.3)
        began = time.monotonic()
        self.call("upload_file", context_id=context, path="meanwhile", content="x")
        self.assertEqual(self.call("list_files", context_id=context)["total"], 1)
        self.assertLess(time.monotonic() - began, 2 * PATIENCE)
        future.cancel()

    # Resources

    def test_files_are_resources(self):
        context = self.context()
        self.call("upload_file", context_id=context, path="data/été 1.csv", content="a,b\n1,2\n")
        self.call("upload_file", context_id=context, path="raw.bin", content="/wD+", encoding="base64")
        listed = self.server.wait(self.client.list_resources(cache_mode="refresh")).resources
        mine = {r.name: r for r in listed if context in str(r.uri)}
        self.assertEqual(set(mine), {"data/été 1.csv", "raw.bin"})
        csv = mine["data/été 1.csv"]
        self.assertEqual((csv.mime_type, csv.size), ("text/csv", 8))
        contents = self.server.wait(self.client.read_resource(str(csv.uri))).contents
        self.assertEqual((contents[0].text, contents[0].mime_type), ("a,b\n1,2\n", "text/csv"))
        contents = self.server.wait(self.client.read_resource(str(mine["raw.bin"].uri))).contents
        self.assertIsInstance(contents[0], mcp_types.BlobResourceContents)
        self.assertEqual(base64.b64decode(contents[0].blob), b"\xff\x00\xfe")

    def test_resource_templates_lead_to_files(self):
        context = self.context()
        templates = self.server.wait(self.client.list_resource_templates()).resource_templates
        files = next(t.uri_template for t in templates if "/files/" in t.uri_template)
        self.call("upload_file", context_id=context, path="a.txt", content="x")
        uri = files.replace("{context_id}", context).replace("{+path}", "a.txt")
        self.assertEqual(self.server.wait(self.client.read_resource(uri)).contents[0].text, "x")

    def test_resources_that_are_not_there(self):
        context = self.context()
        self.run_code(context, "import os\nos.symlink('/etc/passwd', 'out')")
        for uri in (f"belljar://contexts/{context}/files/none", f"belljar://contexts/{NOBODY}/files/a", "file:///etc/passwd",
                    f"belljar://contexts/{context}/files//etc/passwd", f"belljar://contexts/{context}/files/out",
                    f"belljar://contexts/{context}/outputs/..%2F..%2Fetc%2Fpasswd"):
            with self.subTest(uri), self.assertRaises(MCPError) as caught:
                self.server.wait(self.client.read_resource(uri))
            self.assertIn(caught.exception.code, (-32602, -32002))
            self.assertNotIn("root:", str(caught.exception))

    # stop_context and list_contexts

    def test_stop_returns_what_was_agreed_and_is_final(self):
        context = self.call("create_context", name="to be stopped")["context_id"]
        result = self.result("stop_context", context_id=context)
        stopped = result.structured_content
        self.assertEqual(set(stopped), {"context_id", "status", "message"})
        self.assertEqual((stopped["context_id"], stopped["status"]), (context, "stopped"))
        self.assertEqual(json.loads(result.content[0].text), stopped)
        for tool, more in (("run_code", {"code": "1"}), ("stop_context", {}), ("list_files", {}),
                           ("download_file", {"path": "a"}), ("upload_file", {"path": "a", "content": "x"})):
            self.assertIn(context, self.refused("CONTEXT_NOT_FOUND", tool, context_id=context, **more))
        self.refused("CONTEXT_NOT_FOUND", "stop_context", context_id="to be stopped")
        self.refused("INVALID_PARAMS", "stop_context")
        self.assertNotIn(context, json.dumps(self.call("list_contexts")))

    def test_stop_waits_for_code_that_runs(self):
        context = self.call("create_context", name="busy")["context_id"]
        run = self.start("run_code", context_id=context, code="import time\ntime.sleep(1.5)\nprint('finished')")
        time.sleep(0.4)
        began = time.monotonic()
        self.call("stop_context", context_id=context)
        self.assertGreater(time.monotonic() - began, 0.7)
        self.assertEqual(self.finish(run, 5).structured_content["stdout"], "finished\n")

    def test_contexts_are_listed_newest_first(self):
        before = self.call("list_contexts")
        self.assertEqual(set(before), {"contexts", "total"})
        made = [self.context(name=f"listed-{n}", language=("python", "javascript")[n % 2]) for n in range(3)]
        listed = self.call("list_contexts")
        self.assertEqual(listed["total"], before["total"] + 3)
        self.assertEqual([c["context_id"] for c in listed["contexts"]][:3], made[::-1])
        newest = listed["contexts"][0]
        self.assertEqual(set(newest),
                         {"context_id", "name", "description", "language", "status", "created_at", "last_used"})
        self.assertEqual((newest["name"], newest["language"], newest["status"]), ("listed-2", "python", "active"))
        self.assertRegex(newest["last_used"], ISO)
        time.sleep(1.1)
        self.run_code(made[0], "1")
        used = {c["context_id"]: c for c in self.call("list_contexts")["contexts"]}
        self.assertGreater(used[made[0]]["last_used"], used[made[0]]["created_at"])
        self.assertGreater(used[made[0]]["last_used"], used[made[1]]["last_used"])

    # JavaScript

    def test_javascript_keeps_state(self):
        context = self.context("javascript")
        ran = self.run_code(context, "console.log('hello'); console.error('oops')")
        self.assertEqual((set(ran), ran["stdout"], ran["stderr"], ran["success"]), (RAN, "hello\n", "oops\n", True))
        self.run_code(context, "let a = 1; const b = 2; var c = 3; function f(x) { return x + a + b + c }\nclass P { y = 4 }")
        self.assertEqual(self.value(context, "f(4)"), "10")
        self.assertEqual(self.value(context, "let a = 10; const b = 20; class P { y = 40 }; f(4)"), "37")
        self.assertEqual(self.value(context, "new P().y"), "40")
        self.assertEqual(self.value(context, "const {x, ...rest} = {x: 1, y: 2, z: 3}; const [p, q = 9] = [8]; [x, rest, p, q]"),
                         "[ 1, { y: 2, z: 3 }, 8, 9 ]")
        self.assertEqual(self.value(context, "rest.y + q"), "11")

    def test_javascript_has_await_require_and_import(self):
        context = self.context("javascript")
        self.assertEqual(self.value(context, "const later = await new Promise(r => setTimeout(r, 20, 'later')); later"), "'later'")
        self.assertEqual(self.value(context, "require('path').join('a', 'b')"), "'a/b'")
        self.assertEqual(self.value(context, "const os = await import('node:os'); typeof os.cpus"), "'function'")
        self.assertEqual(self.value(context, "require('fs').writeFileSync('out.txt', 'from js'); process.cwd()"), "'/workspace'")
        self.assertEqual(self.call("download_file", context_id=context, path="out.txt")["content"], "from js")
        self.call("upload_file", context_id=context, path="mod.js", content="module.exports = {n: 5}")
        self.assertEqual(self.value(context, "require('./mod.js').n"), "5")
        self.assertEqual(self.value(context, "({a: [new Map([[1, 2]])]})"), "{ a: [ Map(1) { 1 => 2 } ] }")

    def test_javascript_failures_are_clean(self):
        context = self.context("javascript")
        ran = self.run_code(context, "function inner() { throw new TypeError('bad') }\ninner()")
        self.assertFalse(ran["success"])
        self.assertEqual(ran["error"], {"name": "TypeError", "message": "bad"})
        self.assertIn("TypeError: bad", ran["stderr"])
        self.assertIn("inner", ran["stderr"])
        for ours in ("belljar", "kernel.cjs", "node:vm"):
            self.assertNotIn(ours, ran["stderr"])
        self.assertEqual(self.run_code(context, "let = ;")["error"]["name"], "SyntaxError")
        ran = self.run_code(context, "Promise.reject(new Error('nobody caught this')); await new Promise(r => setTimeout(r, 50))")
        self.assertIn("nobody caught this", ran["stderr"])
        self.assertEqual(self.value(context, "1 + 1"), "2")

    def test_javascript_time_limit_keeps_variables(self):
        context = self.context("javascript")
        self.run_code(context, "const kept = 'yes'")
        for code in ("while (true) {}", "await new Promise(() => {})", "require('child_process').execSync('sleep 60')"):
            with self.subTest(code):
                ran = self.run_code(context, code, timeout=1, wait=15)
                self.assertFalse(ran["success"])
                self.assertIn("time limit", " ".join(ran["notes"]))
                self.assertEqual(self.value(context, "kept"), "'yes'")

    def test_javascript_long_output_is_cut(self):
        context = self.context("javascript")
        ran = self.run_code(context, "for (let n = 0; n < 300000; n++) console.log(String(n).padStart(9, '0'))")
        self.assertEqual(ran["stdout_truncated"]["total_bytes"], 3_000_000)
        self.assertTrue(ran["stdout"].endswith("000299999\n"))
        self.assertLess(len(ran["stdout"]), 101_000)


class Auto(Contexts, SdkTestCase):
    mode = "auto"

    def test_the_modern_protocol_is_spoken(self):
        self.assertEqual(self.client.protocol_version, MODERN)


class Legacy(Contexts, SdkTestCase):
    mode = "legacy"

    def test_the_older_protocol_is_spoken(self):
        self.assertLess(self.client.protocol_version, MODERN)


class FewContexts(SdkTestCase):
    settings = {"CONTEXTS_MAX": 2}

    def test_the_quota(self):
        first, _ = self.context(), self.context()
        self.assertIn("2", self.refused("LIMIT_EXCEEDED", "create_context", name="third"))
        self.assertEqual(self.value(first, "1"), "1")
        self.call("stop_context", context_id=first)
        self.context(name="third")
        self.assertEqual(self.call("list_contexts")["total"], 2)

    def test_refused_creations_do_not_count(self):
        for _ in range(5):
            self.refused("INVALID_LANGUAGE", "create_context", name="x", language="ruby")
        self.context(), self.context()


class ShortLives(SdkTestCase):
    settings = {"CONTEXTS_IDLE_TIMEOUT": "2s", "RUN_TIMEOUT": "1s", "RUN_MAX_TIMEOUT": "5s", "OUTPUT_CAP": 1000}

    def test_a_context_that_nobody_uses_ends(self):
        context = self.call("create_context", name="idle")["context_id"]
        self.assertEqual(self.value(context, "1"), "1")
        gone = wait_until(lambda: self.call("list_contexts")["total"] == 0, 15 * PATIENCE)
        self.assertTrue(gone)
        self.refused("CONTEXT_NOT_FOUND", "run_code", context_id=context, code="1")

    def test_a_context_at_work_is_not_idle(self):
        context = self.call("create_context", name="at work")["context_id"]
        ran = self.run_code(context, "import time\ntime.sleep(4)\nprint('done')", timeout=5)
        self.assertEqual(ran["stdout"], "done\n")

    def test_the_limits_are_the_servers(self):
        context = self.call("create_context", name="limits")["context_id"]
        ran = self.run_code(context, "import time\ntime.sleep(9)")
        self.assertIn("time limit", " ".join(ran["notes"]))
        self.assertLess(ran["execution_time"], 3)
        self.refused("INVALID_PARAMS", "run_code", context_id=context, code="1", timeout=6)
        self.assertLess(len(self.run_code(context, "print('x' * 5000)")["stdout"]), 1300)
        tools = {tool.name: tool for tool in self.server.wait(self.client.list_tools()).tools}
        self.assertIn("2 s", tools["create_context"].description)


class DefaultContext(SdkTestCase):
    settings = {"DEFAULT_CONTEXT": "true"}

    def test_code_alone_is_enough(self):
        self.assertTrue(self.call("run_code", code="x = 1")["success"])
        self.assertEqual(self.call("run_code", code="x + 1")["result"], "2")
        self.call("upload_file", path="a", content="1")
        self.assertEqual(self.call("list_files")["total"], 1)
        self.assertEqual(self.call("list_contexts")["total"], 1)
        tools = {tool.name: tool for tool in self.server.wait(self.client.list_tools()).tools}
        self.assertEqual(tools["run_code"].input_schema["required"], ["code"])
        other = self.context()
        self.assertEqual(self.run_code(other, "x")["error"]["name"], "NameError")


class Settings(unittest.TestCase):
    def refused(self, *arguments, **settings):
        done = subprocess.run([BELLJAR, "mcp", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=20, env=environment(**settings))
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def test_nonsense_is_refused_at_start(self):
        self.assertIn("nonsense", self.refused("--toolsets", "nonsense"))
        self.assertIn("BELLJAR_POOL_SIZE", self.refused(POOL_SIZE="many"))
        self.assertIn("run.timeout", self.refused(RUN_TIMEOUT="2h"))
        self.assertIn("/nonexistent", self.refused(CONFIG="/nonexistent"))


if __name__ == "__main__":
    unittest.main()
