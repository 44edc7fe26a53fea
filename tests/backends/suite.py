"""What every backend promises, through `belljar mcp` and `belljar serve`: the same tests for each of them.

Run by tests/backends/run.sh; BELLJAR_TEST_BACKEND says which backend, BELLJAR_TEST_DOCKER where its engine is and
BELLJAR_TEST_RUNTIME what it runs containers with. Standard library only."""

import json
import os
import re
import signal
import subprocess
import tempfile
import unittest
import urllib.request
from pathlib import Path

from harness import BELLJAR, META, PATIENCE, Raw, Refused, environment, home, wait_until
from promises import LIMIT, Promises, insist

BACKEND = os.environ.get("BELLJAR_TEST_BACKEND", "local")
ENGINE = os.environ.get("BELLJAR_TEST_DOCKER", "")
RUNTIME = os.environ.get("BELLJAR_TEST_RUNTIME", "")
SETTINGS = {"BACKEND": BACKEND}
if BACKEND == "docker":
    SETTINGS |= {"DOCKER_HOST": ENGINE, "DOCKER_RUNTIME": RUNTIME}
GVISOR = RUNTIME == "runsc"
UNLIMITED = "this gVisor does not know every kind of cgroups, so the tests start it without any"
# What a container has less of than a jail, and says so: see docs/docker.md.
WEAKER = {"local": set(), "docker": {"user namespace", "built root", "landlock"}}
if os.environ.get("BELLJAR_TEST_ENGINE") == "podman" and not Path("/sys/fs/cgroup/cgroup.controllers").exists():
    WEAKER["docker"].add("cgroup namespace")


def docker(*arguments):
    ran = subprocess.run(["docker", "-H", ENGINE, *arguments], capture_output=True, text=True, check=True)
    return ran.stdout.split()


def containers():
    return docker("ps", "-aq", "--filter", "label=belljar.handle") if BACKEND == "docker" else []


def directories():
    """One for each server that lives, or died and was not swept yet."""
    run = home() / ("docker/run" if BACKEND == "docker" else "run")
    return [str(path) for path in run.glob("*")]


def mounts():
    return [line for line in Path("/proc/mounts").read_text().splitlines() if str(home() / "docker") in line]


def assert_nothing_left(test):
    """Sandboxes end with their server, whatever it could do itself; empty directories may wait for the next one."""
    test.assertTrue(wait_until(lambda: not containers() and not mounts(), 60 * PATIENCE), (containers(), mounts()))
    before = set(directories())
    with Raw(**SETTINGS, POOL_SIZE=0):
        swept = wait_until(lambda: directories() and not before & set(directories()), 60 * PATIENCE)
        test.assertTrue(swept, (before, directories()))
    test.assertTrue(wait_until(lambda: not directories(), 60 * PATIENCE), directories())


def unless(condition, why, test):
    """The same promise, where it can hold."""
    return unittest.skipIf(condition, why)(test)


class Tools(Promises, unittest.TestCase):
    settings = SETTINGS
    # gVisor's own network answers otherwise.
    unreachable = "113" if GVISOR else "101"
    test_a_volume_is_shared_by_the_callers_sandboxes = unless(
        GVISOR or os.geteuid() != 0, "volumes take root, and a container on this kernel",
        Promises.test_a_volume_is_shared_by_the_callers_sandboxes)
    test_memory_is_limited = unless(GVISOR, UNLIMITED, Promises.test_memory_is_limited)
    test_processes_are_limited = unless(GVISOR, UNLIMITED, Promises.test_processes_are_limited)

    # kernels

    def test_notebooks_are_notebooks(self):
        context = self.context()
        self.assertEqual(self.run_code(context, "!echo from the shell\n6 * 7")["stdout"], "from the shell\n")
        shown = self.run_code(context, "import matplotlib.pyplot as plt; _ = plt.plot([1, 2])")
        self.assertTrue(any("image/png" in str(output) for output in shown["outputs"]), shown)

    def test_an_interpreter_that_dies_is_replaced(self):
        context = self.context()
        self.run_code(context, "open('kept', 'w').write('kept'); gone = 1")
        died = self.run_code(context, "import os; os.kill(os.getpid(), 9)")
        self.assertFalse(died["success"])
        self.assertIn("all variables and imports are gone", json.dumps(died))
        self.assertEqual(self.run_code(context, "print(open('kept').read(), 'gone' in globals())")["stdout"], "kept False\n")

    # time limits

    def test_code_that_ignores_the_interrupt_is_ended(self):
        code = ("import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
                "while True:\n    try: time.sleep(0.01)\n    except BaseException: pass")
        context = self.context()
        ran = self.run_code(context, code, timeout=1)
        self.assertFalse(ran["success"])
        self.assertEqual(self.run_code(context, "print('alive')")["stdout"], "alive\n")

    # files

    def test_a_link_leads_nowhere(self):
        context = self.context()
        self.run_code(context, "import os; os.symlink('/etc', 'out')")
        with self.assertRaises(Refused) as refused:
            self.call("download_file", context_id=context, path="out/passwd")
        self.assertEqual(refused.exception.code, "PATH_NOT_ALLOWED")

    # limits

    def test_the_workspace_is_limited(self):
        code = ("wrote = 0\ntry:\n    with open('big', 'wb') as file:\n        for _ in range(3000): wrote += file.write(bytes(1 << 20))\n"
                "except OSError as error: print(error.errno)\nimport os; os.unlink('big'); print(wrote < 3000 << 20)")
        ran = self.run_code(self.context(), code, timeout=120)
        self.assertIn(ran["stdout"], ("28\nTrue\n",), ran)

    @unittest.skipIf(GVISOR, UNLIMITED)
    def test_a_flavor_is_what_the_sandbox_has(self):
        code = "x = bytearray(1400 << 20)\nx[::4096] = b'x' * len(x[::4096])\nprint('has it')"
        for flavor, has_it in (("small", False), ("large", True)):
            with self.subTest(flavor):
                made = self.call_text("execute_code", code=code, flavor=flavor, timeout=120)
                self.assertEqual("has it\n" in made, has_it, made)

    def call_text(self, tool, /, **arguments):
        self.context()
        result = self.server.finish(self.server.start_call(tool, **arguments)[1], LIMIT)
        session = result["structuredContent"]["session_id"]
        self.addCleanup(self.call, "stop_session", session_id=session)
        return result["structuredContent"]["stdout"]

    # the outside

    def test_nothing_of_ours_can_be_written(self):
        code = ("import os\nfor path in ('/', '/usr', '/etc', '/opt/belljar', '/run', '/run/belljar', '/volumes'):\n"
                "    try: open(path + '/x', 'w'); print('wrote', path)\n    except OSError: pass\nprint('done')")
        self.assertEqual(self.run_code(self.context(), code)["stdout"], "done\n")


class Networks(unittest.TestCase):
    @unittest.skipIf(GVISOR, "descriptors cannot be handed out of it")
    def test_the_proxy_is_on_the_sandboxes_own_loopback(self):
        """It refuses the way there is nothing allowed at the end of, and that is an answer of ours."""
        code = ("import os, socket\n"
                "with socket.create_connection(('127.0.0.1', 3128), 60) as proxy:\n"
                "    proxy.sendall(b'GET http://nowhere.invalid/ HTTP/1.1\\r\\nHost: nowhere.invalid\\r\\n\\r\\n')\n"
                "    print(proxy.recv(1000).split(b'\\r\\n')[0].decode(), os.environ['http_proxy'])")
        settings = {"NETWORK_MAX": "allowlist", "NETWORK_DEFAULT": "allowlist", "NETWORK_ALLOW": "example.com"}
        with Raw(**SETTINGS, POOL_SIZE=0, **settings) as server:
            context = insist(server, "create_context", name="x")["context_id"]
            ran = insist(server, "run_code", context_id=context, code=code, timeout=120)
        refused = "HTTP/1.1 403 Refused by Belljar: nowhere.invalid:80 is not on the operator's allow-list"
        self.assertEqual(ran["stdout"], f"{refused} http://127.0.0.1:3128\n", ran)


class Lives(unittest.TestCase):
    """What is left when a server ends, however it ends."""

    def test_a_context_that_stops_leaves_nothing(self):
        with Raw(**SETTINGS, POOL_SIZE=0) as server:
            for language in ("python", "javascript"):
                context = insist(server, "create_context", name="x", language=language)["context_id"]
                insist(server, "stop_context", context_id=context)
            self.assertEqual(containers(), [])
        assert_nothing_left(self)

    def test_a_server_on_pipes_takes_everything_along(self):
        for signal_number in (None, signal.SIGTERM, signal.SIGKILL):
            with self.subTest(signal_number):
                server = Raw(**SETTINGS, POOL_SIZE=1, POOL_LANGUAGES="python")
                context = insist(server, "create_context", name="x")["context_id"]
                self.assertTrue(insist(server, "run_code", context_id=context, code="1")["success"])
                if signal_number:
                    server.process.send_signal(signal_number)
                    server.process.wait(60 * PATIENCE)
                server.close()
                assert_nothing_left(self)


class Serve:
    """`belljar serve`, as a client of the older era would use it."""

    def __init__(self, **settings):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([BELLJAR, "serve", "--port", "0"], stdout=subprocess.DEVNULL, stderr=self.log,
                                        env=environment(LOG="info", POOL_SIZE=1, POOL_LANGUAGES="python", **SETTINGS, **settings))
        assert wait_until(lambda: self.port() or self.process.poll() is not None, 60 * PATIENCE), self.said()
        assert self.port(), self.said()

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def port(self):
        found = re.search(r"listening on http://127\.0\.0\.1:(\d+)/mcp", self.said())
        return found and int(found[1])

    def start_call(self, tool, /, **arguments):
        return None, (tool, arguments)

    def call(self, tool, /, **arguments):
        return self.finish_call((tool, arguments), LIMIT)

    def finish_call(self, call, wait):
        tool, arguments = call
        params = {"name": tool, "arguments": arguments, "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream",
                   "mcp-protocol-version": META["io.modelcontextprotocol/protocolVersion"],
                   "mcp-method": "tools/call", "mcp-name": tool}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port()}/mcp", body, headers)
        with urllib.request.urlopen(request, timeout=wait) as answer:
            text = answer.read().decode()
        lines = [line[5:] for line in text.splitlines() if line.startswith("data:")] or [text]
        message = next(m for m in map(json.loads, filter(str.strip, lines)) if m.get("id") == 1)
        result = message["result"]
        if result.get("isError"):
            told = json.loads(result["content"][0]["text"])
            raise Refused(told["code"], told["error"])
        return result["structuredContent"]

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.process.wait(120 * PATIENCE)


class Survival(unittest.TestCase):
    def test_contexts_outlive_a_server_that_is_killed(self):
        first = Serve()
        self.addCleanup(first.close)
        context = insist(first, "create_context", name="survivor")["context_id"]
        other = insist(first, "create_context", name="other", language="javascript")["context_id"]
        first.call("run_code", context_id=context, code="x = 41; open('file', 'w').write('kept')")
        first.call("run_code", context_id=other, code="const y = 1")
        first.end(signal.SIGKILL)
        second = Serve()
        self.addCleanup(second.close)
        names = [c["name"] for c in second.call("list_contexts")["contexts"]]
        self.assertEqual(sorted(names), ["other", "survivor"], second.said())
        ran = second.call("run_code", context_id=context, code="print(x + 1, open('file').read())")
        self.assertEqual(ran["stdout"], "42 kept\n", ran)
        self.assertEqual(second.call("run_code", context_id=other, code="console.log(y)")["stdout"], "1\n")
        second.call("stop_context", context_id=context)
        second.end()
        assert_nothing_left(self)


class Glass(unittest.TestCase):
    @unittest.skipIf(GVISOR, "its kernel is another one, which the probes do not know")
    def test_the_layers_hold(self):
        ran = subprocess.run([BELLJAR, "doctor", "--json"], capture_output=True, text=True, env=environment(**SETTINGS))
        report = json.loads(ran.stdout)
        self.assertTrue(report["escape_test"], report)
        broken = {probe["layer"] for probe in report["escape_test"] if not probe["held"]}
        self.assertLessEqual(broken, WEAKER[BACKEND], report)

    def test_a_backend_that_is_not_there_is_an_error_with_the_remedy(self):
        ran = subprocess.run([BELLJAR, "run", "--backend", "docker", "-c", "1"], capture_output=True, text=True,
                             env=environment(DOCKER_HOST="unix:///nowhere/docker.sock"))
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("there is no container engine at /nowhere/docker.sock", ran.stderr)
        self.assertIn("--backend local", ran.stderr)

    def test_doctor_says_so_too(self):
        ran = subprocess.run([BELLJAR, "doctor", "--backend", "docker"], capture_output=True, text=True,
                             env=environment(DOCKER_HOST="unix:///nowhere/docker.sock"))
        self.assertNotEqual(ran.returncode, 0)
        self.assertRegex(ran.stdout, r"MISSING docker backend +there is no container engine at /nowhere/docker.sock.*Install Docker")
        self.assertIn("Not ready", ran.stdout)

    @unittest.skipUnless(BACKEND == "docker", "an engine's matter")
    def test_a_runtime_that_is_not_there_is_an_error_with_the_remedy(self):
        ran = subprocess.run([BELLJAR, "run", "--backend", "docker", "--docker-runtime", "nothing", "-c", "1"], capture_output=True,
                             text=True, env=environment(DOCKER_HOST=ENGINE))
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn('knows no runtime "nothing", only', ran.stderr)


if __name__ == "__main__":
    unittest.main()
