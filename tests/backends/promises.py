"""What the tools promise wherever sandboxes come from and whoever runs the server. Standard library only.

suite.py adds what is the same on every backend but not for every user, tests/ordinary what an ordinary user has besides."""

import base64
import hashlib
from pathlib import Path

from harness import PATIENCE, Raw, Refused, home, wait_until

LIMIT = 180
ENDLESS = "import time\nkept = 'kept'\nwhile True: time.sleep(0.05)"
FORKS = """import os, time
made = []
try:
    for _ in range(1000):
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
        made.append(pid)
except OSError: pass
for pid in made:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
print(len(made) < 1000)"""


def insist(server, tool, /, **arguments):
    """Calls again while the server is still starting: on a busy machine that takes its time."""
    def call():
        try:
            return server.finish_call(server.start_call(tool, **arguments)[1], LIMIT * PATIENCE)
        except Refused as refused:
            if refused.code != "SERVER_NOT_READY":
                raise
    return wait_until(call, 300 * PATIENCE)


class Promises:
    """For a unittest.TestCase, with the settings of its server."""

    settings = {}
    # What a program hears that wants to go out.
    unreachable = "101"

    @classmethod
    def setUpClass(cls):
        cls.server = Raw(toolsets="contexts,sessions,sandbox", POOL_SIZE=1, **cls.settings)
        cls.addClassCleanup(cls.server.close)

    def call(self, tool, /, **arguments):
        return insist(self.server, tool, **arguments)

    def context(self, language="python"):
        context = self.call("create_context", name=self._testMethodName, language=language)["context_id"]
        self.addCleanup(self.call, "stop_context", context_id=context)
        return context

    def run_code(self, context, code, **arguments):
        return self.call("run_code", context_id=context, code=code, **arguments)

    # kernels

    def test_python_keeps_its_state(self):
        context = self.context()
        self.assertTrue(self.run_code(context, "import numpy as np\nx = np.arange(5)")["success"])
        self.assertEqual(self.run_code(context, "print(int(x.sum()))")["stdout"], "10\n")

    def test_javascript_keeps_its_state(self):
        context = self.context("javascript")
        self.assertTrue(self.run_code(context, "const x = await Promise.resolve(41)")["success"])
        self.assertEqual(self.run_code(context, "console.log(x + 1)")["stdout"], "42\n")

    def test_a_failing_program_is_no_failed_call(self):
        ran = self.run_code(self.context(), "1/0")
        self.assertFalse(ran["success"])
        self.assertIn("ZeroDivisionError", ran["stderr"])

    def test_a_time_limit_leaves_the_variables(self):
        context = self.context()
        self.assertFalse(self.run_code(context, ENDLESS, timeout=1)["success"])
        self.assertEqual(self.run_code(context, "print(kept)")["stdout"], "kept\n")

    # files

    def test_files_go_in_and_out(self):
        context, data = self.context(), bytes(range(256)) * 40
        sent = self.call("upload_file", context_id=context, path="a/b.bin", content=base64.b64encode(data).decode(),
                         encoding="base64")
        self.assertEqual(sent["sha256"], hashlib.sha256(data).hexdigest())
        read = self.run_code(context, "import hashlib; print(hashlib.sha256(open('a/b.bin','rb').read()).hexdigest())")
        self.assertEqual(read["stdout"].strip(), sent["sha256"])
        got = self.call("download_file", context_id=context, path="a/b.bin", encoding="base64")
        self.assertEqual(base64.b64decode(got["content"]), data)
        listed = self.call("list_files", context_id=context, path="a")["entries"]
        self.assertEqual([Path(entry["path"]).name for entry in listed], ["b.bin"])

    def test_a_volume_is_shared_by_the_callers_sandboxes(self):
        where = self.call("get_volume_path")
        path = next(value for value in where.values() if isinstance(value, str) and value.startswith("/volumes/"))
        one, other = self.context(), self.context()
        self.assertTrue(self.run_code(one, f"open({path!r} + '/note', 'w').write('from one')")["success"])
        self.assertEqual(self.run_code(other, f"print(open({path!r} + '/note').read())")["stdout"], "from one\n")
        self.run_code(one, f"import os; os.unlink({path!r} + '/note')")

    # processes

    def test_sessions_run_code_and_commands(self):
        ran = self.call("execute_code", code="y = 5; print(y)")
        self.assertTrue(ran["session_created"])
        session = ran["session_id"]
        self.addCleanup(self.call, "stop_session", session_id=session)
        self.assertEqual(self.call("execute_code", code="print(y + 1)", session_id=session)["stdout"], "6\n")
        command = self.call("execute_command", command="echo out; echo err >&2", session_id=session)
        self.assertEqual((command["stdout"], command["stderr"], command["exit_code"]), ("out\n", "err\n", 0))
        begun = self.call("execute_command", command="echo one; sleep 0.2; echo done", session_id=session, background=True)
        said, status = begun["stdout"], begun["status"]
        while status == "running":
            more = self.call("execute_command", session_id=session, process_id=begun["process_id"], wait=10,
                             stdout_offset=len(said))
            said, status = said + more["stdout"], more["status"]
        self.assertEqual(said, "one\ndone\n")

    # limits

    def test_memory_is_limited(self):
        context = self.context()
        ran = self.run_code(context, "x = bytearray(6 << 30)\nx[::4096] = b'x' * len(x[::4096])\nprint('has it')", timeout=120)
        self.assertNotIn("has it", ran["stdout"])
        self.assertEqual(self.run_code(context, "print('alive')")["stdout"], "alive\n")

    def test_processes_are_limited(self):
        self.assertEqual(self.run_code(self.context(), FORKS, timeout=120)["stdout"], "True\n")

    # the outside

    def test_two_contexts_share_nothing(self):
        one, other = self.context(), self.context()
        self.run_code(one, "open('/tmp/mine', 'w').write('x'); mine = 1")
        ran = self.run_code(other, "import os; print(os.path.exists('/tmp/mine'), 'mine' in globals())")
        self.assertEqual(ran["stdout"], "False False\n")

    def test_there_is_no_network_and_no_host(self):
        code = ("import socket\n"
                "try: socket.create_connection(('192.0.2.1', 80), 5)\n"
                "except OSError as error: print(error.errno)\n"
                f"import os; print(os.path.exists({str(home())!r}))")
        self.assertEqual(self.run_code(self.context(), code)["stdout"], f"{self.unreachable}\nFalse\n")

    def test_what_cannot_be_done_is_refused_with_a_code(self):
        for code, tool, arguments in (
            ("CONTEXT_NOT_FOUND", "run_code", {"context_id": "nobody", "code": "1"}),
            ("INVALID_LANGUAGE", "create_context", {"name": "x", "language": "cobol"}),
            ("FILE_NOT_FOUND", "download_file", {"context_id": self.context(), "path": "nothing"}),
            ("INVALID_PARAMS", "execute_code", {"code": "1", "template": "nothing"}),
        ):
            with self.subTest(code), self.assertRaises(Refused) as refused:
                self.call(tool, **arguments)
            self.assertEqual(refused.exception.code, code)
