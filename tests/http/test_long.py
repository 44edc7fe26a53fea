"""Work that takes long: leaving it, polling it as a task, and processes in the background."""

import json
import time
import unittest

from harness import Background, Failed, HttpTestCase, PREFIX, wait_until

BEGIN = "open('began', 'w')\nimport time\n"
LONG = BEGIN + "for _ in range(250): time.sleep(0.1)\nended = True"


class Leaving(HttpTestCase):
    def began(self, client, context):
        return wait_until(lambda: client.call("list_files", context_id=context)["total"], 10)

    def test_in_the_new_era_whoever_leaves_cancels(self):
        client = self.server.client()
        for tool, name in (("run_code", "context_id"), ("execute_code", "session_id")):
            with self.subTest(tool):
                context = client.context()
                client.value(context, "x = 'kept'; x")
                stream = client.open(tool, **{name: context, "code": LONG})
                self.assertTrue(self.began(client, context))
                stream.close()
                # Not at the end of its 25 seconds: a run that cannot wait for its turn would be refused.
                self.assertEqual(client.value(context, "(x, 'ended' in dir())", timeout=5), "('kept', False)")

    def test_leaving_at_once_costs_nothing_but_the_run(self):
        client = self.server.client()
        context = client.context()
        client.value(context, "x = 'kept'; x")
        for number in range(100):
            stream = client.open("run_code", context_id=context, code=LONG)
            time.sleep(number / 20_000)
            stream.close()
            self.assertEqual(client.value(context, "(x, 'ended' in dir())"), "('kept', False)")

    def test_a_command_is_ended_when_its_caller_leaves(self):
        client = self.server.client()
        context = client.context()
        stream = client.open("execute_command", session_id=context, command="touch began; sleep 20; touch ended")
        self.assertTrue(self.began(client, context))
        stream.close()
        look = "import glob; [c for c in (open(p).read() for p in glob.glob('/proc/[0-9]*/cmdline')) if 'sleep\\x0020' in c]"
        gone = lambda: client.value(context, look) == "[]"
        self.assertTrue(wait_until(gone, 10))
        self.assertEqual(client.call("list_files", context_id=context)["total"], 1)

    def test_in_the_old_era_it_goes_on(self):
        for era in ("plain", "session"):
            with self.subTest(era):
                client = self.server.client(era=era)
                context = client.context()
                stream = client.open("run_code", context_id=context, code=BEGIN + "time.sleep(1)\nended = True")
                self.assertTrue(self.began(client, context))
                stream.close()
                self.assertEqual(client.value(context, "ended"), "True")

    def test_a_call_that_waits_its_turn_is_dropped(self):
        client = self.server.client()
        context = client.context()
        first = client.open("run_code", context_id=context, code=LONG)
        self.assertTrue(self.began(client, context))
        client.open("run_code", context_id=context, code="open('should not be', 'w')").close()
        first.close()
        self.assertEqual(client.value(context, "import os; sorted(os.listdir())"), "['began']")


class Tasks(HttpTestCase):
    def setUp(self):
        self.client = self.server.client()
        self.client.extensions = {PREFIX + "tasks": {}}
        self.context = self.client.context()

    def get(self, task):
        return self.client.request("tasks/get", {"taskId": task})

    def test_what_is_quick_needs_no_task(self):
        self.assertEqual(self.client.value(self.context, "1 + 1"), "2")

    def test_what_takes_long_becomes_a_task_with_a_result(self):
        started = self.client.result("run_code", context_id=self.context, code="import time; time.sleep(7); print('done')")
        self.assertEqual((started["resultType"], started["status"]), ("task", "working"))
        task = started["taskId"]
        # Another connection, another client of the same caller.
        self.client = self.server.client()
        self.client.extensions = {PREFIX + "tasks": {}}
        self.assertGreater(started.get("pollIntervalMs", 1), 0)
        self.assertIn(self.get(task)["status"], ("working", "completed"))
        self.assertTrue(wait_until(lambda: self.get(task)["status"] == "completed", 30), self.get(task))
        result = self.get(task)["result"]
        self.assertEqual(result["structuredContent"]["stdout"], "done\n")
        self.assertEqual(self.get(task)["result"], result, "it can be fetched again")

    def test_cancelling_interrupts(self):
        self.client.value(self.context, "x = 'kept'; x")
        task = self.client.result("run_code", context_id=self.context, code=LONG)["taskId"]
        self.client.request("tasks/cancel", {"taskId": task})
        self.assertEqual(self.client.value(self.context, "(x, 'ended' in dir())", timeout=5), "('kept', False)")
        self.assertTrue(wait_until(lambda: self.get(task)["status"] == "cancelled", 10), self.get(task))

    def test_a_task_that_does_not_exist(self):
        for method in ("tasks/get", "tasks/cancel"):
            with self.assertRaises(Failed) as caught:
                self.client.request(method, {"taskId": "no-such-task"})
            self.assertEqual(caught.exception.code, -32602)

    def test_who_does_not_ask_for_tasks_gets_none(self):
        plain = self.server.client()
        task = Background(self.client.result, "run_code", context_id=self.client.context(), code=LONG)
        done = plain.call("run_code", context_id=self.context, code="import time; time.sleep(5.5); print('done')")
        self.assertEqual(done["stdout"], "done\n")
        self.client.request("tasks/cancel", {"taskId": task.join()["taskId"]})


class Processes(HttpTestCase):
    def setUp(self):
        self.client = self.server.client()
        self.session = self.client.call("execute_code", code="1")["session_id"]
        self.addCleanup(self.client.call, "stop_session", session_id=self.session)

    def start(self, command, **arguments):
        started = self.client.call("execute_command", session_id=self.session, command=command, background=True, **arguments)
        self.assertTrue(started["success"])
        return started["process_id"]

    def follow(self, process, **arguments):
        return self.client.call("execute_command", session_id=self.session, process_id=process, **arguments)

    def ended(self, process, **arguments):
        done = lambda: (now := self.follow(process, wait=2, **arguments))["status"] != "running" and now
        return wait_until(done, 30)

    def test_polling_reads_on_where_it_was(self):
        process = self.start("for i in $(seq 1 30); do echo line $i; echo err $i >&2; sleep 0.02; done")
        stdout = stderr = ""
        offsets = (0, 0)
        for _ in range(200):
            now = self.follow(process, wait=2, stdout_offset=offsets[0], stderr_offset=offsets[1])
            stdout, stderr = stdout + now["stdout"], stderr + now["stderr"]
            offsets = now["next_stdout_offset"], now["next_stderr_offset"]
            if now["status"] != "running" and not now["more_output"]:
                break
        self.assertEqual((now["status"], now["exit_code"]), ("exited", 0))
        self.assertEqual(stdout.splitlines(), [f"line {n + 1}" for n in range(30)])
        self.assertEqual(stderr.splitlines(), [f"err {n + 1}" for n in range(30)])
        again = self.follow(process, stdout_offset=len("line 1\n"))
        self.assertTrue(again["stdout"].startswith("line 2\n"))
        beyond = self.follow(process, stdout_offset=10 ** 9)
        self.assertEqual(beyond["stdout"], "")

    def test_waiting_ends_with_the_first_news(self):
        process = self.start("read line; echo got $line; sleep 60")
        self.assertEqual(self.follow(process, wait=0.2)["stdout"], "")
        now = self.follow(process, input="hello\n", wait=30)
        self.assertEqual((now["stdout"], now["status"]), ("got hello\n", "running"))
        self.assertEqual(now["input_bytes_taken"], 6)

    def test_input_can_be_closed(self):
        process = self.start("sort; echo end")
        self.follow(process, input="b\na\n")
        self.follow(process, input="c\n", close_input=True)
        self.assertEqual(self.ended(process)["stdout"], "a\nb\nc\nend\n")

    def test_signals(self):
        process = self.start("trap 'echo term; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
        self.assertTrue(wait_until(lambda: self.follow(process, wait=1)["stdout"] == "ready\n", 10))
        self.follow(process, signal="SIGTERM")
        now = self.ended(process)
        self.assertEqual((now["exit_code"], now["stdout"]), (3, "ready\nterm\n"))
        process = self.start("sleep 60")
        self.follow(process, signal="KILL")
        now = self.ended(process)
        self.assertEqual((now["status"], now["signal"], now["exit_code"]), ("signaled", "SIGKILL", None))
        self.assert_refused("INVALID_PARAMS", self.client, "execute_command", session_id=self.session,
                            process_id=process, signal="NONSENSE")

    def test_a_time_limit_of_its_own(self):
        now = self.ended(self.start("echo begun; sleep 60", timeout=0.5))
        self.assertEqual((now["status"], now["timed_out"], now["stdout"]), ("timed_out", True, "begun\n"))

    def test_code_and_commands_work_beside_it(self):
        process = self.start("sleep 60")
        self.assertEqual(self.client.call("execute_code", session_id=self.session, code="print(2)")["stdout"], "2\n")
        self.assertEqual(self.client.call("execute_command", session_id=self.session, command="echo 3")["stdout"], "3\n")
        self.assertEqual(self.follow(process)["status"], "running")

    def test_much_output_stays_bounded(self):
        process = self.start("head -c 3000000 /dev/zero | tr '\\0' x")
        now = self.ended(process)
        self.assertLessEqual(len(json.dumps(now)), 200_000)
        self.assertTrue(now["more_output"])
        self.assertGreater(now["next_stdout_offset"], 0)

    def test_a_process_that_never_was(self):
        for process in ("proc-999", "nonsense", "proc--1", "proc-99999999999999999999"):
            with self.subTest(process):
                result = self.client.result("execute_command", session_id=self.session, process_id=process)
                self.assertTrue(result["isError"])
        self.assert_refused("INVALID_PARAMS", self.client, "execute_command", process_id="proc-1")


if __name__ == "__main__":
    unittest.main()
