"""Every tool of the toolset `sessions`, over pipes."""

import json
import time
import unittest

from harness import PATIENCE, Raw, wait_until

TOOLS = ["execute_code", "execute_command", "get_sessions", "stop_session", "get_volume_path"]
NOBODY = "ctx-00000000-0000-4000-8000-000000000000"


class Sessions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Raw(toolsets="sessions,contexts")
        cls.python = cls.call("execute_code", code="x = 41")["session_id"]

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    @classmethod
    def result(cls, tool, /, **arguments):
        return cls.server.finish(cls.server.start_call(tool, **arguments)[1])

    @classmethod
    def call(cls, tool, /, **arguments):
        return cls.result(tool, **arguments)["structuredContent"]

    def command(self, command, **arguments):
        return self.call("execute_command", **{"session_id": self.python, "command": command, **arguments})

    def refused(self, code, words, tool, /, **arguments):
        result = self.result(tool, **arguments)
        self.assertTrue(result["isError"])
        told = json.loads(result["content"][0]["text"])
        self.assertEqual(told["code"], code, told)
        self.assertIn(words, told["error"])

    def ids(self):
        return [session["session_id"] for session in self.call("get_sessions")["sessions"]]

    def test_the_tools_are_the_toolset(self):
        with Raw(toolsets="sessions") as server:
            self.assertEqual([tool["name"] for tool in server.request("tools/list")["tools"]], TOOLS)

    # Code

    def test_a_session_goes_on(self):
        result = self.result("execute_code", code="print('out')\nx + 1", session_id=self.python)
        self.assertEqual(result["content"][0]["text"], "out\n42")
        said = result["structuredContent"]
        self.assertEqual((said["stdout"], said["result"], said["success"]), ("out\n", "42", True))
        self.assertFalse(said["session_created"])
        self.assertFalse(result["isError"])

    def test_a_new_session_is_announced_and_known_to_all_tools(self):
        result = self.result("execute_code", code="console.log(6 * 7)", template="node", flavor="medium")
        said = result["structuredContent"]
        self.assertTrue(said["session_created"])
        self.assertEqual(result["content"][0]["text"], "42\n")
        self.assertIn(said["session_id"], result["content"][1]["text"])
        [session] = self.call("get_sessions", session_id=said["session_id"])["sessions"]
        self.assertEqual((session["template"], session["flavor"], session["status"]), ("node", "medium", "active"))
        self.assertEqual(self.ids()[0], said["session_id"])
        ran = self.call("run_code", context_id=session["name"], code="1 + 1")
        self.assertEqual(ran["result"], "2")
        stopped = self.call("stop_session", session_id=session["name"])
        self.assertEqual((stopped["session_id"], stopped["stopped"]), (said["session_id"], True))
        self.assertNotIn(said["session_id"], self.ids())

    def test_a_failing_program_is_an_error(self):
        result = self.result("execute_code", code="print('before')\n1 / 0", session_id=self.python)
        self.assertTrue(result["isError"])
        self.assertTrue(result["content"][0]["text"].startswith("before\nTraceback"))
        self.assertEqual(result["structuredContent"]["error"]["name"], "ZeroDivisionError")

    def test_what_contradicts_or_is_gone_is_refused(self):
        count = len(self.ids())
        self.refused("CONTEXT_NOT_FOUND", "get_sessions", "execute_code", code="1", session_id=NOBODY)
        self.refused("CONTEXT_NOT_FOUND", "get_sessions", "stop_session", session_id=NOBODY)
        self.refused("CONTEXT_NOT_FOUND", "get_sessions", "get_sessions", session_id=NOBODY)
        self.refused("INVALID_PARAMS", "has template 'python'", "execute_code", code="1", session_id=self.python,
                     template="node")
        self.refused("INVALID_PARAMS", "has flavor 'small'", "execute_code", code="1", session_id=self.python,
                     flavor="large")
        self.assertEqual(len(self.ids()), count)

    def test_a_session_that_nobody_heard_of_is_stopped(self):
        before = set(self.ids())
        self.refused("INVALID_PARAMS", "no-such-program", "execute_command", command="no-such-program")
        number, _ = self.server.start_call("execute_code", code="while True: pass")
        self.assertTrue(wait_until(lambda: len(set(self.ids()) - before) == 1, 20 * PATIENCE))
        self.server.send({"method": "notifications/cancelled", "params": {"requestId": number, "reason": "test"}})
        self.assertTrue(wait_until(lambda: set(self.ids()) == before, 20 * PATIENCE))

    # Commands

    def test_a_line_and_a_program(self):
        said = self.command("echo $GREETING | tr a-z A-Z; pwd", env={"GREETING": "hello"}, cwd="/tmp")
        self.assertEqual((said["stdout"], said["exit_code"], said["success"]), ("HELLO\n/tmp\n", 0, True))
        self.assertEqual(self.command("echo", args=["$HOME", "a  b"])["stdout"], "$HOME a  b\n")
        self.command("echo 7 > number")
        self.assertEqual(self.call("execute_code", code="open('number').read()", session_id=self.python)["result"],
                         "'7\\n'")

    def test_ways_to_end(self):
        failed = self.result("execute_command", command="echo no >&2; exit 3", session_id=self.python)
        self.assertTrue(failed["isError"])
        self.assertEqual(failed["content"][0]["text"], "no\n")
        self.assertEqual(failed["structuredContent"]["exit_code"], 3)
        killed = self.command("kill -TERM $$")
        self.assertEqual((killed["exit_code"], killed["signal"], killed["timed_out"]), (None, "SIGTERM", False))
        late = self.command("sleep 1000", timeout=0.5)
        self.assertEqual((late["exit_code"], late["timed_out"], late["success"]), (None, True, False))
        self.assertIn("time limit", late["notes"][0])

    def test_what_cannot_be_started_is_refused(self):
        arguments = {"session_id": self.python}
        self.refused("INVALID_PARAMS", "no-such-program", "execute_command", command="no-such-program", **arguments)
        self.refused("INVALID_PARAMS", "/workspace/nowhere", "execute_command", command="ls", cwd="nowhere", **arguments)
        self.refused("INVALID_PARAMS", "env.A", "execute_command", command="ls", env={"A": 1}, **arguments)
        self.refused("INVALID_PARAMS", "process_id", "execute_command")
        self.refused("INVALID_PARAMS", "131072", "execute_command", command="x" * 200_000, **arguments)

    def test_commands_run_beside_code(self):
        _, code = self.server.start_call("execute_code", session_id=self.python,
                                         code="import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)")
        [session] = self.call("get_sessions", session_id=self.python)["sessions"]
        self.assertEqual(session["status"], "running")
        self.assertTrue(self.command("touch /tmp/go")["success"])
        self.assertTrue(self.server.finish(code)["structuredContent"]["success"])

    def test_long_output_is_cut_and_kept(self):
        said = self.command("seq 1 200000")
        self.assertLess(len(said["stdout"]), 101_000)
        self.assertEqual(said["stdout_truncated"]["total_bytes"], 1_288_895)
        kept = self.command("wc -c < " + said["stdout_truncated"]["full_output"])
        self.assertEqual(kept["stdout"], "1288895\n")

    # Background

    def follow(self, process, **arguments):
        return self.call("execute_command", session_id=self.python, process_id=process, **arguments)

    def test_a_process_is_followed_to_its_end(self):
        process = self.command("echo one; read line; echo got $line; echo oops >&2; exit 4", background=True)
        self.assertEqual((process["status"], process["exit_code"], process["success"]), ("running", None, True))
        said = self.follow(process["process_id"], wait=20)
        self.assertEqual((said["stdout"], said["next_stdout_offset"]), ("one\n", 4))
        [session] = self.call("get_sessions", session_id=self.python)["sessions"]
        self.assertEqual(session["status"], "running")
        said = self.follow(process["process_id"], input="it\n", wait=20, stdout_offset=4)
        self.assertEqual(said["input_bytes_taken"], 3)

        def ended():
            return (last := self.follow(process["process_id"]))["status"] != "running" and last

        said = wait_until(ended, 20 * PATIENCE)
        self.assertEqual((said["status"], said["exit_code"], said["success"]), ("exited", 4, False))
        self.assertEqual((said["stdout"], said["stderr"]), ("one\ngot it\n", "oops\n"))

    def test_a_process_is_signalled(self):
        process = self.command("exec sleep 1000", background=True)["process_id"]
        result = self.result("execute_command", session_id=self.python, process_id=process, signal="SIGTERM", wait=20)
        said = result["structuredContent"]
        self.assertEqual((said["status"], said["signal"], result["isError"]), ("signaled", "SIGTERM", False))
        self.refused("INVALID_PARAMS", "has ended", "execute_command", session_id=self.python, process_id=process,
                     signal="KILL")
        self.refused("INVALID_PARAMS", "proc-99", "execute_command", session_id=self.python, process_id="proc-99")

    def test_a_process_keeps_its_session(self):
        with Raw(toolsets="sessions", CONTEXTS_IDLE_TIMEOUT="1s") as server:
            busy = server.call("execute_command", command="exec sleep 1000", background=True)["session_id"]
            idle = server.call("execute_code", code="1")["session_id"]

            def live():
                return [session["session_id"] for session in server.call("get_sessions")["sessions"]]

            self.assertTrue(wait_until(lambda: idle not in live(), 20 * PATIENCE))
            time.sleep(1)
            self.assertEqual(live(), [busy])

    # Volumes

    def test_volumes_are_told_without_the_hosts_paths(self):
        volumes = self.call("get_volume_path", session_id=self.python)
        self.assertEqual(volumes["session_id"], self.python)
        for volume in volumes["volumes"]:
            self.assertTrue(volume["path"].startswith("/volumes/"))
        self.refused("CONTEXT_NOT_FOUND", "get_sessions", "get_volume_path", session_id=NOBODY)


if __name__ == "__main__":
    unittest.main()
