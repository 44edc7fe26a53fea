"""Programs that mean harm. Whatever they do: the call ends with a clear result within its time limit, the same
context answers the next call, and a neighbour never notices."""

import threading
import time

from harness import PATIENCE, SdkTestCase

# What a call may take beyond its time limit: the interrupt, the kill, and a new interpreter.
GRACE = 8
# A neighbour's `1 + 1` while two processors are under attack.
NEIGHBOURLY = 3


class Neighbour:
    """A context that keeps working while another one misbehaves."""

    def __init__(self, test):
        self.test, self.context = test, test.context(name=f"neighbour-{test.id()[-60:]}")
        test.run_code(self.context, "import itertools\ncounter = itertools.count()\nstate = {'intact': True}")
        self.slowest, self.calls, self.failure = 0, 0, None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self):
        while not self._stop.wait(0.05):
            began = time.monotonic()
            try:
                ran = self.test.run_code(self.context, "next(counter), state['intact']", wait=20)
                assert ran.get("result") == f"({self.calls}, True)", ran
            except BaseException as error:
                self.failure = error
                return
            self.calls += 1
            self.slowest = max(self.slowest, time.monotonic() - began)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


class Hostile(SdkTestCase):
    def attack(self, code, *, language="python", timeout=10, context=None, recovers_late=False):
        """Runs the program next to a neighbour and returns what the call says."""
        context = context or self.context(language)
        self.assertTrue(self.run_code(context, "x = 'before'")["success"])
        with Neighbour(self) as neighbour:
            began = time.monotonic()
            ran = self.run_code(context, code, timeout=timeout, wait=timeout + GRACE)
            took = time.monotonic() - began
            after = self.run_code(context, "1 + 1", timeout=10, wait=20)
            if recovers_late and after.get("result") != "2":
                self.assertIn("died", " ".join(after["notes"]))
                after = self.run_code(context, "1 + 1", timeout=10, wait=20)
            time.sleep(0.2)
        self.assertLess(took, (timeout + GRACE) * PATIENCE)
        if not ran["success"]:
            self.assertTrue(ran["stderr"] or ran.get("notes") or ran.get("error"), f"failed without a word: {ran}")
        self.assertEqual(after.get("result"), "2", after)
        self.assertIsNone(neighbour.failure)
        self.assertGreater(neighbour.calls, 0)
        self.assertLess(neighbour.slowest, NEIGHBOURLY * PATIENCE)
        self.assertEqual(self.call("list_files", context_id=context, wait=10)["total"] >= 0, True)
        return ran

    def dies(self, code, **options):
        """The interpreter is lost, and the result says so; files are not."""
        context = self.context(options.get("language", "python"))
        self.call("upload_file", context_id=context, path="kept.txt", content="kept")
        ran = self.attack(code, context=context, **options)
        self.assertFalse(ran["success"])
        notes = " ".join(ran["notes"])
        self.assertIn("died", notes)
        self.assertIn("gone", notes)
        self.assertFalse(self.run_code(context, "x")["success"], "the state is said to be gone but is not")
        self.assertEqual(self.call("download_file", context_id=context, path="kept.txt")["content"], "kept")
        return ran

    # Too much of something

    def test_fork_bomb(self):
        self.attack("import os\nwhile True:\n    os.fork()", timeout=5)

    def test_fork_bomb_that_ignores_errors(self):
        self.attack("import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass", timeout=5)

    def test_shell_fork_bomb(self):
        self.attack("!bomb() { bomb | bomb & }; bomb; sleep 2", timeout=5)

    def test_thread_bomb(self):
        ran = self.attack("import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
                          timeout=10)
        self.assertFalse(ran["success"])

    def test_thirty_gigabytes_at_once(self):
        ran = self.attack("x = bytearray(30 << 30)\nfor n in range(0, len(x), 4096): x[n] = 1", timeout=25)
        self.assertFalse(ran["success"])
        self.assertIn("memory", (ran["stderr"] + " ".join(ran.get("notes", []))).lower())

    def test_thirty_gigabytes_little_by_little(self):
        ran = self.attack("hoard = []\nwhile True: hoard.append(b'x' * (16 << 20))", timeout=25)
        self.assertFalse(ran["success"])
        self.assertIn("memory", (ran["stderr"] + " ".join(ran.get("notes", []))).lower())

    def test_memory_in_a_child(self):
        code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'x = []\\nwhile True: x.append(b\"x\" * (16 << 20))']).returncode"
        self.attack(code, timeout=25)

    def test_memory_in_shared_memory_and_pipes(self):
        self.attack("import mmap\nm = []\nwhile True:\n    p = mmap.mmap(-1, 64 << 20)\n    p.write(b'x' * len(p))\n    m.append(p)", timeout=25)

    def test_disk_fill(self):
        context = self.context()
        ran = self.attack("block = b'x' * (4 << 20)\nwith open('/workspace/full', 'wb', 0) as f:\n    while True:\n        f.write(block)",
                          timeout=25, context=context)
        self.assertFalse(ran["success"])
        self.assertIn("No space left", ran["stderr"])
        self.refused("LIMIT_EXCEEDED", "upload_file", context_id=context, path="more", content="x" * 1_000_000)
        self.assertTrue(self.run_code(context, "import os\nos.remove('/workspace/full')")["success"])
        self.call("upload_file", context_id=context, path="more", content="x" * 1_000_000)

    def test_disk_fill_of_everything_writable(self):
        code = ("import os\nfor top in ('/workspace', '/tmp', '/dev/shm', '/outputs', '/', '/dev', '/var/tmp', os.path.expanduser('~')):\n"
                "    try:\n        f = open(os.path.join(top, 'full'), 'wb', 0)\n        while True: f.write(b'x' * (4 << 20))\n"
                "    except OSError as e: print(top, e)")
        self.attack(code, timeout=40)

    def test_output_after_the_disk_is_full(self):
        context = self.context()
        self.attack("try:\n    f = open('/tmp/full', 'wb', 0)\n    while True: f.write(b'x' * (1 << 20))\nexcept OSError: pass", context=context)
        ran = self.run_code(context, "print('x' * 3_000_000)\nprint('end')", wait=20)
        self.assertTrue(ran["success"])
        self.assertTrue(ran["stdout"].endswith("end\n"))

    def test_inode_exhaustion(self):
        code = "import os\nn = 0\nwhile True:\n    os.close(os.open(f'/workspace/{n}', os.O_CREAT | os.O_WRONLY))\n    n += 1"
        context = self.context()
        ran = self.attack(code, timeout=40, context=context)
        self.assertFalse(ran["success"])
        self.assertLessEqual(len(self.call("list_files", context_id=context)["entries"]), 1000)

    def test_deep_directories(self):
        self.attack("import os\nwhile True:\n    os.mkdir('d')\n    os.chdir('d')", timeout=5)

    def test_descriptor_exhaustion(self):
        ran = self.attack("hoard = []\nwhile True: hoard.append(open('/dev/null'))")
        self.assertIn("Too many open files", ran["stderr"])

    def test_socket_and_pipe_exhaustion(self):
        self.attack("import socket\nhoard = []\nwhile True:\n    hoard.append(socket.socketpair())\n    hoard[-1][0].setblocking(False)\n"
                    "    try:\n        while True: hoard[-1][0].send(b'x' * 65536)\n    except BlockingIOError: pass", timeout=15)

    def test_endless_output(self):
        ran = self.attack("while True: print('x' * 1000)", timeout=3)
        self.assertIn("time limit", " ".join(ran["notes"]))
        self.assertIn("stdout_truncated", ran)

    def test_endless_output_of_a_child(self):
        self.attack("!yes", timeout=3)

    def test_endless_displays(self):
        self.attack("while True: display({'text/html': 'x' * 100_000}, raw=True)", timeout=3)

    def test_a_display_too_large_to_send(self):
        ran = self.attack("display({'text/plain': 'p' * (40 << 20), 'text/html': 'h' * (40 << 20)}, raw=True)\n'r' * (40 << 20)", timeout=20)
        self.assertTrue(ran["success"], ran)

    def test_busy_processors(self):
        self.attack("import os\nfor _ in range(20):\n    if os.fork() == 0:\n        while True: pass\nwhile True: pass", timeout=4)

    # The interpreter's death

    def test_kill_everything(self):
        self.attack("import os\nos.kill(-1, 9)")

    def test_kill_everything_from_a_child(self):
        self.dies("!kill -9 -1")

    def test_kill_itself(self):
        ran = self.dies("import os\nprint('last words', flush=True)\nos.kill(os.getpid(), 9)")
        self.assertEqual(ran["stdout"], "last words\n")

    def test_exit(self):
        ran = self.dies("import os\nprint('last words', flush=True)\nos._exit(3)")
        self.assertEqual(ran["stdout"], "last words\n")

    def test_segmentation_fault(self):
        self.dies("import ctypes\nctypes.string_at(0)")

    def test_abort(self):
        self.dies("import os\nos.abort()")

    def test_stack_overflow(self):
        self.attack("import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return [f(x + [x])]\nf([])", timeout=15)

    def test_exec_of_another_program(self):
        self.dies("import os\nos.execv('/bin/sleep', ['sleep', '600'])", timeout=4)

    def test_stop_itself(self):
        self.attack("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", timeout=3)

    def test_stop_everything(self):
        self.attack("import os, signal\nos.kill(-1, signal.SIGSTOP)\nos.kill(os.getpid(), signal.SIGSTOP)", timeout=3)

    def test_signals_to_the_first_process(self):
        self.attack("import os\nfor s in range(1, 65):\n    try:\n        os.kill(1, s)\n    except OSError as e:\n        print(s, e)")

    # The way to the guest

    def test_closing_all_descriptors(self):
        self.attack("import os\nos.closerange(0, 65536)")

    def test_closing_standard_streams(self):
        context = self.context()
        self.attack("import os, sys\nsys.stdout.close(); sys.stderr.close(); sys.stdin.close()\nfor n in range(3): os.close(n)", context=context)
        self.assertEqual(self.run_code(context, "print('back')")["stdout"], "back\n")

    SOCKETS = ("import os, stat\nsockets = []\nfor n in map(int, os.listdir('/proc/self/fd')):\n    try:\n"
               "        if stat.S_ISSOCK(os.fstat(n).st_mode): sockets.append(n)\n    except OSError: pass\n"
               "assert sockets, 'there is no control socket to attack'\n")

    def test_garbage_on_the_control_socket(self):
        self.attack(self.SOCKETS + "for n in sockets: os.write(n, b'garbage' * 1000)")

    def test_a_huge_frame_on_the_control_socket(self):
        self.attack(self.SOCKETS + "for n in sockets: os.write(n, b'\\xff\\xff\\xff\\x7f' + b'\\xff' * 1000)")

    def test_endless_frames_on_the_control_socket(self):
        self.attack(self.SOCKETS + "while True:\n    for n in sockets: os.write(n, b'\\0' * 65536)", timeout=4)

    def test_forged_frames_on_the_control_socket(self):
        self.attack(self.SOCKETS + """
import json, struct
def frame(head, body=b''):
    text = json.dumps(head).encode()
    return struct.pack('<II', 4 + len(text) + len(body), len(text)) + text + body
for head in ({'done': {'id': 999, 'ok': True}}, {'hello': {'pid': 2, 'language': 'python', 'version': ''}}, {'hello': {}}, {'nonsense': {}}, [], 5,
             {'display': {'id': 1, 'result': True, 'parts': [['a', 1 << 60]]}}, {'done': {'id': 999, 'ok': True}, 'pong': {'id': 1}}):
    for n in sockets: os.write(n, frame(head))
""")

    def test_stealing_what_the_host_sends(self):
        """A thread that takes the next call's code away harms that call, which says so, and no other."""
        self.attack(self.SOCKETS + "import threading\nfor n in sockets: threading.Thread(target=os.read, args=(n, 1 << 20), daemon=True).start()",
                    timeout=4, recovers_late=True)

    def test_shutting_the_control_socket(self):
        self.attack(self.SOCKETS + "import socket\nfor n in sockets: socket.socket(fileno=os.dup(n)).shutdown(2)")

    # The language turned against its kernel

    def test_builtins_and_modules_replaced(self):
        context = self.context()
        self.attack("import builtins, sys\nfor name in list(vars(builtins)):\n    if not name.startswith('__') and name != 'list': delattr(builtins, name)",
                    context=context)
        self.attack("import sys\nsys.modules.clear()")
        self.attack("import json, os, socket, struct\nfor m in (json, os, socket, struct):\n    for n in [n for n in vars(m)]: setattr(m, n, None)")

    def test_exceptions_that_fight_back(self):
        self.attack("class Evil(Exception):\n    def __str__(self): raise SystemExit\n    __repr__ = __str__\nraise Evil")
        self.attack("class Evil:\n    def __repr__(self):\n        while True: pass\nEvil()", timeout=2)
        self.attack("while True:\n    try:\n        while True: pass\n    except BaseException: pass", timeout=2)
        self.attack("import sys\nsys.settrace(lambda *a: 1 / 0)\nsys.setprofile(lambda *a: None)")
        self.attack("import atexit, os\natexit.register(os._exit, 1)\nraise SystemExit")

    def test_a_process_left_behind_does_not_hold_the_call(self):
        ran = self.attack("import subprocess\nsubprocess.Popen(['sleep', '600'])\nprint('returned')", timeout=10)
        self.assertEqual(ran["stdout"], "returned\n")
        self.assertLess(ran["execution_time"], 5)

    def test_a_daemon_does_not_hold_the_call(self):
        ran = self.attack("import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.execv('/bin/sleep', ['sleep', '600'])\n"
                          "    os._exit(0)\nprint('returned')", timeout=10)
        self.assertEqual(ran["stdout"], "returned\n")

    # JavaScript

    def test_javascript_exit_and_abort(self):
        for code in ("process.exit(0)", "process.abort()", "process.kill(process.pid, 'SIGKILL')", "process.reallyExit(5)"):
            with self.subTest(code):
                self.attack(code, language="javascript")

    def test_javascript_memory(self):
        ran = self.attack("const hoard = []; while (true) hoard.push(Buffer.alloc(16 << 20, 1))", language="javascript", timeout=25)
        self.assertFalse(ran["success"])
        ran = self.attack("let s = []; while (true) s.push(new Array(1e6).fill(1.5))", language="javascript", timeout=40)
        self.assertFalse(ran["success"])

    def test_javascript_fork_bomb_and_kill(self):
        self.attack("const {spawn} = require('child_process'); while (true) spawn('sleep', ['600']).on('error', () => {})",
                    language="javascript", timeout=4)
        self.attack("require('child_process').execSync('kill -9 -1')", language="javascript")

    def test_javascript_descriptors(self):
        self.attack("const fs = require('fs'); for (let n = 0; n < 1024; n++) { try { fs.closeSync(n) } catch {} }", language="javascript")
        self.attack("const fs = require('fs'); for (let n = 3; n < 64; n++) { try { fs.writeSync(n, 'garbage'.repeat(1000)) } catch {} }",
                    language="javascript")

    def test_javascript_against_its_kernel(self):
        for code in (
            "process.on('SIGINT', () => {}); while (true) {}",
            "for (const k of Object.getOwnPropertyNames(globalThis)) { try { globalThis[k] = undefined } catch {} }",
            "Object.prototype.toString = Array.prototype.push = JSON.stringify = Buffer.from = () => { throw 1 }",
            "setInterval(() => { while (true) {} }, 1); await new Promise(() => {})",
            "process.nextTick(function f() { process.nextTick(f) }); 1",
            "throw { get stack() { process.exit(1) } }",
            "Promise.reject(new Error('x')); process.emit('uncaughtException', new Error('y'))",
        ):
            with self.subTest(code):
                self.attack(code, language="javascript", timeout=2)


if __name__ == "__main__":
    import unittest

    unittest.main()
