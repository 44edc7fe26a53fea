"""What every client must be able to do with `belljar serve`. The classes are mixed into those of test_serve.py and
serve_1x.py, once for each client."""

import base64
import hashlib
import json
import threading
import urllib.error
import urllib.request

from harness import PATIENCE, wait_until

CONTEXTS = {"create_context", "run_code", "stop_context", "list_contexts", "upload_file", "download_file", "list_files"}
SESSIONS = {"execute_code", "execute_command", "get_sessions", "stop_session", "get_volume_path"}
SANDBOX = {"sandbox_create", "sandbox_destroy", "browser_goto", "browser_click", "browser_type", "browser_snapshot",
           "code_run", "file_read", "file_write", "file_list"}
NOBODY = "ctx-00000000-0000-4000-8000-000000000000"
# Longer than any test waits: if it goes on after a cancellation, the next call in its context is not answered.
ENDLESS = "import time\nkept = 1\nprint('begun', flush=True)\nfor _ in range(6000): time.sleep(0.1)\nkept = 2"

# How many are left of the processes that a cancelled command started.
FIND = "grep -cz '^sleep$' /proc/[1-9]*/cmdline | grep -c ':1$' || true"


def wait_for(path):
    return f"import pathlib, time\nwhile not pathlib.Path('{path}').exists(): time.sleep(0.05)"


class Progress:
    """Collects notifications, and waits for one that says something."""

    def __init__(self):
        self.seen, self._news = [], threading.Condition()

    async def __call__(self, progress, total, message):
        with self._news:
            self.seen.append((progress, message or ""))
            self._news.notify_all()

    def says(self, text):
        with self._news:
            return self._news.wait_for(lambda: any(text in message for _, message in self.seen), 30 * PATIENCE)


class Contexts:
    def test_the_tools_are_those_of_three_toolsets(self):
        tools = {tool["name"]: tool for tool in self.ask(self.client.tools())}
        self.assertEqual(set(tools), CONTEXTS | SESSIONS | SANDBOX)
        for tool in tools.values():
            with self.subTest(tool["name"]):
                self.assertGreater(len(tool["description"]), 50)
                self.assertEqual(tool["inputSchema"]["type"], "object")
                self.assertEqual(tool["outputSchema"]["type"], "object")

    def test_state_persists_until_a_context_is_stopped(self):
        context = self.context()
        ran = self.run_code(context, "x = 41\nprint('set')")
        self.assertEqual((ran["stdout"], ran["stderr"], ran["success"]), ("set\n", "", True))
        self.assertEqual(self.value(context, "x + 1"), "42")
        listed = self.call("list_contexts")
        self.assertEqual((listed["total"], listed["contexts"][0]["context_id"]), (1, context))
        other = self.context("javascript")
        self.assertEqual(self.value(other, "const a = [1, 2]; await Promise.resolve(a.map((n) => n * 2))"), "[ 2, 4 ]")
        self.assertEqual(self.call("stop_context", context_id=other)["status"], "stopped")
        self.assertIn(other, self.refused("CONTEXT_NOT_FOUND", "run_code", context_id=other, code="a"))
        self.assertEqual(self.call("list_contexts")["total"], 1)

    def test_a_failing_program_is_a_successful_call(self):
        ran = self.run_code(self.context(), "print('before')\n1 / 0")
        self.assertEqual((ran["success"], ran["stdout"]), (False, "before\n"))
        self.assertEqual(ran["error"], {"name": "ZeroDivisionError", "message": "division by zero"})
        self.assertTrue(ran["stderr"].endswith("ZeroDivisionError: division by zero\n"), ran["stderr"])

    def test_a_figure_is_an_image(self):
        code = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2]);"
        context = self.context()
        for tool, ids in (("run_code", {"context_id": context}), ("execute_code", {"session_id": context})):
            with self.subTest(tool):
                content = self.result(tool, code=code, **ids)["content"]
                image, = (block for block in content if block["type"] == "image")
                self.assertEqual(image["mimeType"], "image/png")
                self.assertEqual(base64.b64decode(image["data"])[:8], b"\x89PNG\r\n\x1a\n")

    def test_files_come_back_as_they_were(self):
        context, data = self.context(), bytes(range(256)) * 20
        there = {"path": "a/b.bin", "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        content = base64.b64encode(data).decode()
        self.assertEqual(
            self.call("upload_file", context_id=context, path="a/b.bin", content=content, encoding="base64"), there)
        down = self.call("download_file", context_id=context, path="a/b.bin")
        self.assertEqual(down, down | there | {"encoding": "base64", "content": content})
        self.assertEqual(self.value(context, "len(open('a/b.bin', 'rb').read())"), str(len(data)))
        listed = self.call("list_files", context_id=context, recursive=True)
        types = {entry["path"]: entry["type"] for entry in listed["entries"]}
        self.assertEqual(types, {"a": "directory", "a/b.bin": "file"})
        self.refused("FILE_NOT_FOUND", "download_file", context_id=context, path="no")
        self.refused("PATH_NOT_ALLOWED", "download_file", context_id=context, path="../etc/passwd")

    def test_files_and_long_output_are_resources(self):
        context = self.context()
        self.call("upload_file", context_id=context, path="n.txt", content="größer\n")
        found, = (resource for resource in self.ask(self.client.resources()) if context in resource["uri"])
        self.assertEqual(self.ask(self.client.read(found["uri"]))[0]["text"], "größer\n")
        result = self.result("run_code", context_id=context, code="print('x' * 200_000)")
        self.assertEqual(result["structuredContent"]["stdout_truncated"]["total_bytes"], 200_001)
        link, = (block for block in result["content"] if block["type"] == "resource_link")
        self.assertEqual(self.ask(self.client.read(link["uri"]))[0]["text"], "x" * 200_000 + "\n")

    def test_names_do_as_well_as_ids(self):
        name = self.name()
        one = self.context(name=name)
        self.assertEqual(self.value(name, "x = 5\nx"), "5")
        self.assertEqual(self.call("execute_code", session_id=name, code="print(x)")["stdout"], "5\n")
        two = self.context(name=name)
        for tool, more in (
            ("run_code", {"context_id": name, "code": "1"}),
            ("stop_context", {"context_id": name}),
            ("execute_code", {"session_id": name, "code": "1"}),
            ("execute_command", {"session_id": name, "command": "true"}),
            ("stop_session", {"session_id": name}),
        ):
            with self.subTest(tool):
                message = self.refused("AMBIGUOUS_NAME", tool, **more)
                self.assertIn(one, message)
                self.assertIn(two, message)
        self.call("stop_session", session_id=two)
        self.assertEqual(self.value(name, "x"), "5")

    def test_progress_tells_what_is_printed(self):
        context, progress = self.context(), Progress()
        code = f"print('begun', flush=True)\n{wait_for('go')}\n'done'"
        running = self.start("run_code", context_id=context, code=code, progress=progress)
        self.assertTrue(progress.says("begun"), progress.seen)
        self.call("upload_file", context_id=context, path="go", content="")
        self.assertEqual(self.finish(running)["structuredContent"]["result"], "'done'")
        counts = [count for count, _ in progress.seen]
        self.assertEqual(counts, sorted(set(counts)))

    def test_cancelling_interrupts_the_code(self):
        context, progress = self.context(), Progress()
        running = self.start("run_code", context_id=context, code=ENDLESS, timeout=900, progress=progress)
        self.assertTrue(progress.says("begun"), progress.seen)
        running.cancel()
        self.assertEqual(self.value(context, "kept"), "1")

    def test_cancelling_ends_a_command(self):
        session, progress = self.session(), Progress()
        running = self.start("execute_command", session_id=session, command="echo begun; sleep 4321", timeout=900,
                             progress=progress)
        self.assertTrue(progress.says("begun"), progress.seen)
        running.cancel()
        self.eventually(lambda: self.call("execute_command", session_id=session, command=FIND)["stdout"] == "0\n")
        self.assertEqual(self.call("get_sessions", session_id=session)["sessions"][0]["status"], "active")

    def test_a_session_that_nobody_was_told_of_is_stopped(self):
        before, progress = self.call("get_sessions")["total"], Progress()
        running = self.start("execute_code", code=ENDLESS, timeout=900, progress=progress)
        self.assertTrue(progress.says("begun"), progress.seen)
        self.assertEqual(self.call("get_sessions")["total"], before + 1)
        running.cancel()
        self.eventually(lambda: self.call("get_sessions")["total"] == before)

    def test_contexts_run_at_the_same_time(self):
        one, two = self.context(), self.context()
        volume = self.call("get_volume_path")["volume_path"]
        path = f"{volume}/{self.name()}"
        waiting = self.start("run_code", context_id=one, code=f"{wait_for(path)}\n'seen'")
        self.value(two, f"open('{path}', 'w').close()")
        self.assertEqual(self.finish(waiting)["structuredContent"]["result"], "'seen'")

    def eventually(self, condition):
        self.assertTrue(wait_until(condition, 30 * PATIENCE))


class Sessions:
    def test_a_session_is_made_once_and_used_again(self):
        result = self.result("execute_code", code="x = 41\nprint('set')")
        made = result["structuredContent"]
        session = made["session_id"]
        self.addCleanup(self.stop_quietly, session)
        self.assertEqual((made["session_created"], made["success"], made["stdout"]), (True, True, "set\n"))
        self.assertEqual(result["content"][0]["text"], "set\n")
        self.assertIn(session, result["content"][1]["text"])
        again = self.call("execute_code", code="print(x + 1)", session_id=session)
        self.assertEqual((again["session_id"], again["session_created"], again["stdout"]), (session, False, "42\n"))
        self.assertEqual(self.value(session, "x"), "41")

    def test_a_session_that_is_gone_is_an_error(self):
        session = self.session()
        stopped = self.call("stop_session", session_id=session)
        self.assertEqual((stopped["session_id"], stopped["stopped"]), (session, True))
        before = self.call("get_sessions")["total"]
        for gone in (session, NOBODY, "no such name"):
            self.assertIn(gone, self.refused("CONTEXT_NOT_FOUND", "execute_code", code="1", session_id=gone))
            self.refused("CONTEXT_NOT_FOUND", "execute_command", command="true", session_id=gone)
            self.refused("CONTEXT_NOT_FOUND", "stop_session", session_id=gone)
            self.refused("CONTEXT_NOT_FOUND", "get_sessions", session_id=gone)
            self.refused("CONTEXT_NOT_FOUND", "get_volume_path", session_id=gone)
        self.assertEqual(self.call("get_sessions")["total"], before)

    def test_a_failing_program_is_an_error_with_its_output(self):
        session = self.session()
        result = self.result("execute_code", code="print('before')\n1 / 0", session_id=session, failed=True)
        ran = result["structuredContent"]
        self.assertEqual((ran["success"], ran["stdout"], ran["session_id"]), (False, "before\n", session))
        self.assertIn("ZeroDivisionError", ran["stderr"])
        self.assertTrue(result["content"][0]["text"].startswith("before\nTraceback"), result["content"][0])

    def test_node_and_flavors(self):
        session = self.session("var a = 6", template="node", flavor="medium")
        self.assertEqual(self.call("execute_code", code="console.log(a * 7)", session_id=session)["stdout"], "42\n")
        listed, = self.call("get_sessions", session_id=session)["sessions"]
        self.assertEqual((listed["template"], listed["flavor"], listed["status"]), ("node", "medium", "active"))
        self.refused("INVALID_PARAMS", "execute_code", code="1", session_id=session, template="python")

    def test_commands_end_in_their_ways(self):
        session = self.session()

        def command(text, **more):
            return self.call("execute_command", command=text, session_id=session, **more)

        ran = command("echo out; echo err >&2; exit 3", failed=True)
        self.assertEqual((ran["stdout"], ran["stderr"], ran["exit_code"], ran["success"]), ("out\n", "err\n", 3, False))
        ran = command("kill -TERM $$", failed=True)
        self.assertEqual((ran.get("exit_code"), ran["signal"], ran["success"]), (None, "SIGTERM", False))
        ran = command("echo begun; sleep 4321", failed=True, timeout=1)
        self.assertEqual((ran["stdout"], ran.get("exit_code"), ran["timed_out"]), ("begun\n", None, True))
        ran = command("printf", args=["%s|", "a b", "$HOME", "*"])
        self.assertEqual((ran["stdout"], ran["exit_code"], ran["timed_out"]), ("a b|$HOME|*|", 0, False))
        ran = command("pwd; echo $WHAT", cwd="/tmp", env={"WHAT": "that"})
        self.assertEqual(ran["stdout"], "/tmp\nthat\n")

    def test_a_command_can_start_a_session(self):
        made = self.call("execute_command", command="echo hello > note.txt")
        self.addCleanup(self.stop_quietly, made["session_id"])
        self.assertTrue(made["session_created"])
        self.assertEqual(self.value(made["session_id"], "open('note.txt').read()"), "'hello\\n'")

    def follow(self, process, **arguments):
        """One that has failed is an error, which is not the point here."""
        ids = {key: process[key] for key in ("session_id", "process_id")}
        return self.finish(self.start("execute_command", **ids, **arguments))["structuredContent"]

    def until(self, process, done, **arguments):
        """Polls from where the last answer ended. Returns all of stdout, and the last answer."""
        text = ""
        for _ in range(100):
            polled = self.follow(process, wait=5, **arguments)
            arguments = {f"{stream}_offset": polled[f"next_{stream}_offset"] for stream in ("stdout", "stderr")}
            text += polled["stdout"]
            if done(text, polled):
                return text, polled
        self.fail(f"it does not come: {text!r}, {polled}")

    def test_a_process_in_the_background(self):
        session = self.session()
        program = "echo ready; while read line; do echo got $line; done; echo end; exit 7"
        process = self.call("execute_command", session_id=session, command=program, background=True)
        self.assertEqual((process["status"], process["success"], process.get("exit_code")), ("running", True, None))
        text, polled = self.until(process, lambda text, _: "ready\n" in text)
        self.assertEqual(text, "ready\n")
        self.assertEqual(self.call("get_sessions", session_id=session)["sessions"][0]["status"], "running")
        sent = self.follow(process, input="one\ntwo\n", stdout_offset=polled["next_stdout_offset"])
        self.assertEqual(sent["input_bytes_taken"], 8)
        text, polled = self.until(process, lambda text, _: "two" in text, stdout_offset=polled["next_stdout_offset"])
        self.assertEqual(text, "got one\ngot two\n")
        rest = {"stdout_offset": polled["next_stdout_offset"], "close_input": True}
        text, polled = self.until(process, lambda _, polled: polled["status"] == "exited", **rest)
        self.assertEqual((text, polled["exit_code"], polled["success"]), ("end\n", 7, False))
        whole = self.result("execute_command", session_id=session, process_id=process["process_id"], failed=True)
        self.assertEqual(whole["structuredContent"]["stdout"], "ready\ngot one\ngot two\nend\n")

    def test_a_signal_for_a_process_in_the_background(self):
        session = self.session()
        program = "trap 'echo caught' USR1; echo ready; while :; do sleep 0.05; done"
        process = self.call("execute_command", session_id=session, command=program, background=True)
        self.until(process, lambda text, _: "ready" in text)
        self.follow(process, signal="USR1")
        self.until(process, lambda text, _: "caught" in text)
        _, polled = self.until(process, lambda _, polled: polled["status"] != "running", signal="KILL")
        self.assertEqual((polled["status"], polled["signal"], polled.get("exit_code")), ("signaled", "SIGKILL", None))

    def test_the_shared_volume_outlives_a_session(self):
        session = self.session()
        told = self.call("get_volume_path", session_id=session)
        path = told["volume_path"]
        self.assertIn((path, "rw"), [(volume["path"], volume["mode"]) for volume in told["volumes"]])
        self.call("execute_code", session_id=session, code=f"open('{path}/note.txt', 'w').write('kept')")
        self.call("stop_session", session_id=session)
        self.assertEqual(self.call("get_volume_path")["volume_path"], path)
        self.assertEqual(self.value(self.context(), f"open('{path}/note.txt').read()"), "'kept'")


class Restarts:
    notices_loss = True  # whether the client gives up a call whose answer is lost

    def test_a_killed_server_comes_back_with_everything(self):
        context, session = self.context(), self.session("y = 6")
        self.value(context, "x = 41")
        self.call("upload_file", context_id=context, path="n.txt", content="kept")
        program = "while read line; do echo got $line; done"
        process = self.call("execute_command", session_id=session, command=program, background=True)
        self.server.crash()
        self.server.start()
        self.assertEqual(self.value(context, "x + 1"), "42")
        self.assertEqual(self.call("execute_code", session_id=session, code="print(y * 7)")["stdout"], "42\n")
        self.assertEqual(self.call("download_file", context_id=context, path="n.txt")["content"], "kept")
        self.follow(process, input="on\n")
        self.until(process, lambda text, _: "got on\n" in text)
        self.assertEqual(len(self.ask(self.client.tools())), 22)
        progress = Progress()
        running = self.start("run_code", context_id=context, code=ENDLESS, timeout=900, progress=progress)
        self.assertTrue(progress.says("begun"), progress.seen)
        running.cancel()
        self.assertEqual(self.value(context, "kept"), "1")

    def test_a_call_in_flight_when_the_server_is_killed(self):
        context, progress = self.context(), Progress()
        running = self.start("run_code", context_id=context, code=ENDLESS, timeout=900, progress=progress)
        self.addCleanup(running.cancel)
        self.assertTrue(progress.says("begun"), progress.seen)
        self.server.crash()
        self.server.start()
        self.assertEqual(self.value(context, "kept"), "1")
        if self.notices_loss:
            self.assertIsNotNone(running.exception(20 * PATIENCE))


class Scenarios(Contexts, Sessions, Restarts):
    pass


class Tokens:
    """A server with tokens that offers one toolset."""

    arguments = ("--toolsets", "sessions")

    @classmethod
    def connect(cls, token=None):
        return super().connect(token or cls.server.token("alice"))

    def test_the_toolset_sessions_is_its_five_tools(self):
        self.assertEqual({tool["name"] for tool in self.ask(self.client.tools())}, SESSIONS)

    def test_callers_do_not_see_each_other(self):
        session = self.session("secret = 1")
        bob = self.connect(self.server.token("bob"))
        self.assertEqual(self.call("get_sessions", client=bob), {"sessions": [], "total": 0})
        self.refused("CONTEXT_NOT_FOUND", "execute_code", client=bob, session_id=session, code="print(secret)")
        alice = self.connect(self.server.token("alice"))
        ran = self.call("execute_code", client=alice, session_id=session, code="print(secret)")
        self.assertEqual(ran["stdout"], "1\n")

    def test_nobody_comes_in_without_a_token(self):
        for token in (None, "wrong"):
            with self.subTest(token), self.assertRaises(RuntimeError) as caught:
                self.client_class(self.server, token)
            self.assertRegex(told(caught.exception.__cause__), "(?i)401|unauthorized|token")
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
        request = urllib.request.Request(self.server.url, body, {"Content-Type": "application/json"})
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=30)
        self.assertEqual(caught.exception.code, 401)
        self.assertTrue(caught.exception.headers["WWW-Authenticate"].startswith("Bearer"))
        caught.exception.close()


def told(error, seen=()):
    """All that an exception says, with those inside of it."""
    if error is None or error in seen:
        return ""
    inner = [*getattr(error, "exceptions", ()), error.__cause__, error.__context__]
    return "\n".join([repr(error), *(told(each, (*seen, error)) for each in inner)])
