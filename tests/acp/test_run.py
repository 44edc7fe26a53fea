"""`belljar acp-run` with agents on both SDKs: their requests are served in a sandbox, by policy, and nothing is left."""

import json
import os
import shlex
import signal
import subprocess
import sys

from rig import BELLJAR, HERE, LIMIT, NODE, NODE_DIR, AcpTestCase, alive, descendants

PUPPET = shlex.join([sys.executable, str(HERE / "puppet.py")])


class Ran:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def events(self, kind=None):
        events = [json.loads(line) for line in self.out.splitlines()]
        return [event[kind] for event in events if event["type"] == kind] if kind else events

    def said(self):
        """What the puppet reported, step by step."""
        chunks = [update["content"]["text"] for update in self.events("update")
                  if update["sessionUpdate"] == "agent_message_chunk"]
        return [json.loads(line) for line in "".join(chunks).splitlines()]

    def __repr__(self):
        return f"exit code {self.code}\n{self.out}\n{self.err}"


class RunTestCase(AcpTestCase):
    def start(self, *arguments, agent=PUPPET, prompts=(), json_lines=True, env=None, **more):
        words = [BELLJAR, "acp-run", "--agent", agent, "--cwd", str(self.project.path), *arguments]
        for prompt in prompts:
            words += ["--prompt", prompt]
        if json_lines:
            words.append("--json")
        return subprocess.Popen(words, env=self.home.environment(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                stdin=subprocess.DEVNULL, text=True, **more)

    def run_it(self, *arguments, **named):
        process = self.start(*arguments, **named)
        try:
            out, err = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
            process.wait()
        return Ran(process.returncode, out, err)

    def puppet(self, *steps, arguments=(), **named):
        return self.run_it(*arguments, prompts=[json.dumps(list(steps))], **named)

    def wait_for_line(self, process, wanted):
        """The first line of output with these words. The pipe ends with the process, so this does too."""
        for line in process.stdout:
            if wanted in line:
                return line
        self.fail(f"{wanted!r} never came: {process.stderr.read()}")


class Served(RunTestCase):
    def test_files_are_served_inside_the_sandbox(self):
        os.symlink("/etc/passwd", self.project.path / "link")
        self.project.give_away()
        ran = self.puppet(
            {"do": "read", "path": "$CWD/a.txt"},
            {"do": "read", "path": "$CWD/a.txt", "line": 2, "limit": 1},
            {"do": "write", "path": "$CWD/new/b.txt", "content": "fresh"},
            {"do": "read", "path": "$CWD/missing.txt"},
            {"do": "read", "path": "/etc/passwd"},
            {"do": "read", "path": "$CWD/../outside"},
            {"do": "read", "path": "a.txt"},
            {"do": "read", "path": "$CWD/link"},
            {"do": "write", "path": "$CWD/link", "content": "x"},
            {"do": "strange_session"},
        )
        self.assertEqual(ran.code, 0, ran)
        said = ran.said()
        self.assertEqual(said[0], {"read": "one\ntwo\nthree\n"})
        self.assertEqual(said[1], {"read": "two\n"})
        self.assertEqual(self.project.read("new/b.txt"), "fresh")
        owner = (self.project.path / "new/b.txt").stat().st_uid
        self.assertEqual(owner, self.project.path.stat().st_uid, "what is written belongs to the project's owner")
        self.assertEqual(said[3]["code"], -32002, said[3])
        for refused in said[4:]:
            self.assertEqual(refused["code"], -32602, refused)
        self.assertIn("below the session's directory", said[4]["error"])

    def test_terminals_run_inside_the_sandbox(self):
        ran = self.puppet(
            {"do": "terminal", "command": "cat a.txt; echo oops >&2; exit 3"},
            {"do": "terminal", "command": "ls", "args": ["$CWD/a.txt"]},
            {"do": "terminal", "command": "pwd; hostname; cat /proc/1/comm; echo $GREETING",
             "env": [{"name": "GREETING", "value": "hello"}]},
            {"do": "terminal", "command": "touch /etc/oops; touch made-inside"},
            {"do": "terminal", "command": "head -c 100000 /dev/zero | tr '\\0' x; echo end", "output_byte_limit": 10},
            {"do": "terminal", "command": "cat"},
            {"do": "terminal", "command": "sleep 1000", "kill": True},
            {"do": "terminal", "command": "true", "cwd": "/root"},
            {"do": "output_of", "terminal_id": "term-of-nobody"},
        )
        self.assertEqual(ran.code, 0, ran)
        first, listed, where, touched, long, empty, killed, elsewhere, nobody = ran.said()
        self.assertEqual((first["output"], first["exit_code"]), ("one\ntwo\nthree\noops\n", 3))
        self.assertEqual((listed["output"], listed["exit_code"]), ("/volumes/project/a.txt\n", 0))
        lines = where["output"].splitlines()
        self.assertEqual((lines[0], lines[2], lines[3]), ("/volumes/project", "belljar-guest", "hello"), where)
        self.assertNotEqual(lines[1], os.uname().nodename)
        self.assertIn("/etc/oops", touched["output"])
        self.assertTrue((self.project.path / "made-inside").exists())
        self.assertEqual((long["output"], long["truncated"]), ("xxxxxx" + "end\n", True))
        self.assertEqual((empty["output"], empty["exit_code"]), ("", 0), "nobody types: standard input ends at once")
        self.assertEqual(killed["signal"], "signal 9")
        self.assertEqual(elsewhere["code"], -32602)
        self.assertEqual(nobody["code"], -32602)

    def test_permissions_are_answered_by_policy(self):
        asked = [{"do": "ask", "kind": "edit"}, {"do": "ask", "kind": "read"}, {"do": "ask", "options": ["reject_always"]}]
        chosen = lambda ran: [step["answer"].get("optionId", "cancelled") for step in ran.said()]  # noqa: E731
        everything = self.puppet(*asked, arguments=["--allow", "all"])
        self.assertEqual(chosen(everything), ["id-allow_once", "id-allow_once", "cancelled"], everything)
        reads = self.puppet(*asked)
        self.assertEqual(chosen(reads), ["id-reject_once", "id-allow_once", "id-reject_always"], reads)
        nothing = self.puppet(*asked, arguments=["--allow", "none"])
        self.assertEqual(chosen(nothing), ["id-reject_once", "id-reject_once", "id-reject_always"], nothing)
        nobody = self.puppet(*asked, arguments=["--allow", "ask"])
        self.assertEqual(chosen(nobody), ["id-reject_once", "id-reject_once", "id-reject_always"], nobody)
        self.assertEqual(len(everything.events("permission")), 3)

    def test_belljar_itself_is_handed_over_as_an_mcp_server(self):
        code = "open('/volumes/project/a.txt').read()"
        call = {"do": "mcp", "tool": "execute_code", "arguments": {"code": f"print({code})"}}
        ran = self.puppet({"do": "servers"}, call)
        self.assertEqual(ran.code, 0, ran)
        self.assertEqual(ran.said()[0], {"servers": ["belljar"]})
        self.assertIn("one\ntwo\nthree", ran.said()[1]["mcp"]["stdout"])
        self.assertEqual(self.puppet({"do": "servers"}, arguments=["--no-mcp"]).said(), [{"servers": []}])

    def test_our_settings_are_handed_over_too(self):
        call = {"do": "mcp", "tool": "run_code", "arguments": {"code": "6 * 7"}}
        ran = self.puppet(call, arguments=["--toolsets", "contexts", "--default-context"])
        self.assertEqual((ran.code, ran.said()[0]["mcp"].get("result")), (0, "42"), ran)

    def test_turns_modes_and_endings(self):
        ran = self.run_it("--mode", "fast", prompts=['[{"do":"plan"}]', '[{"do":"capabilities"}]'])
        self.assertEqual(ran.code, 0, ran)
        self.assertEqual(ran.said()[0], {"mode": "fast"})
        capabilities = ran.said()[2]["capabilities"]
        self.assertEqual(capabilities["fs"], {"readTextFile": True, "writeTextFile": True})
        self.assertTrue(capabilities["terminal"])
        self.assertEqual(ran.events("end"), [{"reason": "end_turn"}])
        for reason, code in {"refusal": 3, "max_tokens": 4, "max_turn_requests": 4, "cancelled": 130}.items():
            ran = self.run_it(prompts=[json.dumps([{"do": "stop", "reason": reason}]), '[{"do":"plan"}]'])
            self.assertEqual((ran.code, ran.events("end")), (code, [{"reason": reason}]), ran)
            self.assertEqual(len(ran.events("prompt")), 1, "a turn that did not end well is the last one")
        wrong = self.run_it("--mode", "warp", prompts=["[]"])
        self.assertEqual(wrong.code, 1)
        self.assertIn("--mode warp: the agent has no such mode, but slow, fast", wrong.err)

    def test_the_session_is_printed_for_people(self):
        steps = [{"do": "text", "text": "Hello \x1b[2Jworld\n"}, {"do": "plan"}, {"do": "ask"}]
        ran = self.puppet(*steps, json_lines=False)
        self.assertEqual(ran.code, 0, ran)
        self.assertIn("agent: puppet 1\nsession: puppet-1\n", ran.out)
        self.assertIn("Hello \ufffd[2Jworld\n", ran.out)
        self.assertIn("plan:\n  [x] look\n  [ ] leap\n", ran.out)
        self.assertIn("? Change \ufffd[31mthe world: reject once\n", ran.out)
        self.assertTrue(ran.out.endswith("end: end_turn\n"), ran.out)
        self.assertNotIn("\x1b", ran.out, "colours are for terminals")

    def test_an_agent_on_the_typescript_sdk(self):
        agent = shlex.join([NODE, str(NODE_DIR / "puppet.mjs")])
        kept = self.run_it(agent=agent, prompts=["go"])
        self.assertEqual((kept.code, self.project.read("a.txt")), (0, "one\ntwo\nthree\n"), kept)
        changed = self.run_it("--allow", "all", agent=agent, prompts=["go"])
        self.assertEqual((changed.code, self.project.read("a.txt")), (0, "ONE\nTWO\nTHREE\n"), changed)
        self.assertIn("now: ONE", changed.out)


class UnderGlass(RunTestCase):
    """The agent itself in the sandbox. Its packages are in the project, where the sandbox finds them."""

    def test_an_agent_in_the_sandbox_sees_the_project_and_no_host(self):
        packages = NODE_DIR / "node_modules"
        subprocess.run(["cp", "-r", packages / "@agentclientprotocol", packages / "zod", self.project.path], check=True)
        modules = self.project.path / "node_modules"
        modules.mkdir()
        for name in ("@agentclientprotocol", "zod"):
            os.rename(self.project.path / name, modules / name)
        self.project.write("agent.mjs", (HERE / "puppet.mjs").read_text())
        self.project.give_away()
        ran = self.run_it("--in-sandbox", "--allow", "all", agent="node agent.mjs", prompts=["go"])
        self.assertEqual((ran.code, self.project.read("a.txt")), (0, "ONE\nTWO\nTHREE\n"), ran)
        self.assertEqual(ran.events("agent")[0]["agentInfo"]["name"], "puppet-ts")

    def test_the_environment_is_passed_by_name_only(self):
        show = 'echo "{\\"seen\\": \\"$SECRET$OTHER\\"}" >&2; exit 9'
        env = {"SECRET": "s3cret", "OTHER": "hidden"}
        ran = self.run_it("--in-sandbox", "--env", "SECRET", agent=show, prompts=["go"], env=env)
        self.assertEqual(ran.code, 5, ran)
        self.assertIn('{"seen": "s3cret"}', ran.err)
        self.assertIn("exited with status 9", ran.err)
        missing = self.run_it("--in-sandbox", "--env", "NOT_THERE", agent="true", prompts=["go"])
        self.assertEqual(missing.code, 1, missing)
        self.assertIn("NOT_THERE", missing.err)


class Trouble(RunTestCase):
    def test_agents_that_do_not_begin(self):
        cases = {
            "no-such-program-anywhere": (5, "exited with status 127"),
            "echo no >&2; exit 3": (5, "exited with status 3"),
            "true": (5, "exited with status 0"),
            "cat >/dev/null": (124, ""),
        }
        for agent, (code, told) in cases.items():
            with self.subTest(agent):
                limit = ["--timeout", "3s"] if code == 124 else []
                ran = self.run_it(*limit, agent=agent, prompts=["go"])
                self.assertEqual(ran.code, code, ran)
                self.assertIn(told, ran.err)
        self.assertIn("agent: no", self.run_it(agent="echo no >&2; exit 3", prompts=["go"]).err)
        old = self.run_it(prompts=["[]"], env={"PUPPET_VERSION": "9"})
        self.assertEqual(old.code, 1, old)
        self.assertIn("protocol version 9", old.err)
        locked = self.run_it(prompts=["[]"], env={"PUPPET_LOCKED": "1"})
        self.assertEqual(locked.code, 1, locked)
        self.assertIn("Authentication required", locked.err)

    def test_agents_that_misbehave(self):
        died = self.puppet({"do": "die"})
        self.assertEqual(died.code, 5, died)
        self.assertIn("before it answered session/prompt; it exited with status 7", died.err)
        self.assertIn("agent: I have had enough", died.err)
        noisy = self.puppet({"do": "raw", "text": "Loading...\n\n"}, {"do": "raw", "text": "{not json\n"},
                            {"do": "raw", "text": '{"jsonrpc":"2.0","method":"session/update","params":{"x":1}}\n'},
                            {"do": "text", "text": "{}\n"}, {"do": "unknown"})
        self.assertEqual(noisy.code, 0, noisy)
        self.assertEqual(noisy.said()[-1]["code"], -32601, noisy)
        long = self.puppet({"do": "raw", "text": '{"x":"' + "y" * 60, "times": 300_000})
        self.assertEqual(long.code, 5, long)
        self.assertIn("a line of more than", long.err)

    def test_a_turn_that_takes_too_long_is_cancelled(self):
        ran = self.puppet({"do": "wait"}, arguments=["--timeout", "5s"])
        self.assertEqual((ran.code, ran.events("end")), (124, [{"reason": "timed_out"}]), ran)

    def test_an_interrupt_cancels_the_turn_and_leaves_nothing(self):
        steps = [{"do": "child"}, {"do": "child", "detached": True}, {"do": "terminal", "command": "true"}, {"do": "wait"}]
        process = self.start(prompts=[json.dumps(steps)])
        self.addCleanup(process.kill)
        self.wait_for_line(process, "waiting")
        tree = {**descendants(process.pid), **self.home.tree()}
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn('"interrupted"', out)
        self.assert_nothing_left(tree)

    def test_kill_leaves_neither_agent_nor_sandbox(self):
        steps = [{"do": "child"}, {"do": "child", "detached": True}, {"do": "terminal", "command": "true"}, {"do": "hang"}]
        process = self.start(prompts=[json.dumps(steps)])
        self.addCleanup(process.kill)
        self.wait_for_line(process, "waiting")
        tree = {**descendants(process.pid), **self.home.tree()}
        self.assertGreater(len(alive(tree)), 5)
        process.kill()
        process.communicate(timeout=LIMIT)
        self.assert_nothing_left(tree)

    def test_what_cannot_be_a_project_is_refused(self):
        for cwd, told in {"/does/not/exist": "no such directory", "/etc/passwd": "not a directory",
                          str(self.home.path): "own state", "/": "not a directory"}.items():
            words = [BELLJAR, "acp-run", "--agent", "true", "--prompt", "go", "--cwd", cwd]
            ran = subprocess.run(words, env=self.home.environment(), capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(ran.returncode, 1, ran)
            self.assertIn(told, ran.stderr)
