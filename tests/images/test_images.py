"""`belljar template`, a registry, and sandboxes of images through MCP."""

import http.server
import json
import os
import subprocess
import threading
import unittest
from pathlib import Path

from harness import PATIENCE, wait_until
from making import PASSWORD, Home, Image, Registry, digest, layer, python, shell

ROOT = Path(__file__).resolve().parents[2]
CHANGES = layer({
    "srv/app/hello.py": b"print('hello from the image')\n",
    "etc/.wh.gone": b"",
    "etc/replaced/.wh..wh..opq": b"",
    "etc/replaced/new": b"new\n",
})


def base():
    return layer({**shell(), "etc/gone": b"old\n", "etc/replaced/old": b"old\n", "etc/kept": b"kept\n"})


class WithHome(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = Home()
        cls.addClassCleanup(cls.home.close)

    def nothing_is_left(self):
        left = self.home.templates()
        self.assertEqual((left["templates"], left["disk_bytes"]), ([], 0))
        for place in ("layers", "tmp", "templates"):
            self.assertEqual(os.listdir(self.home.path / "images" / place), [])


class Pulling(WithHome):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.registry = Registry()
        cls.addClassCleanup(cls.registry.close)
        cls.image = Image(base(), CHANGES, Env=["GREETING=hello"], WorkingDir="/srv/app", User="app")
        cls.reference = cls.registry.push("team/app", "1", cls.image)

    def add(self, name, reference, *arguments, **options):
        return self.home.template("add", name, "--image", reference, "--plain-http", *arguments, **options)

    def test_by_tag_and_by_digest_and_what_they_share(self):
        said = self.add("by-tag", self.reference)
        self.assertIn("added by-tag from image", said)
        pinned = f"{self.registry.address}/team/app@{digest(self.image.manifest)}"
        by_digest = json.loads(self.add("by-digest", pinned, "--json"))
        self.assertEqual(by_digest["digest"], digest(self.image.manifest))
        self.assertEqual(by_digest["layers"], [digest(one) for one in self.image.layers])
        listed = self.home.templates()
        self.assertEqual([one["name"] for one in listed["templates"]], ["by-digest", "by-tag"])
        # Each layer is there once.
        self.assertEqual(listed["disk_bytes"], by_digest["bytes"])
        shown = self.home.template("inspect", "by-tag")
        for text in ("GREETING=hello", "/srv/app", "app, who is the sandbox's own user", *by_digest["layers"]):
            self.assertIn(text, shown)
        self.assertIn("0 kB freed", self.home.template("remove", "by-tag"))
        self.home.template("remove", "by-digest")
        self.nothing_is_left()

    def test_a_corrupted_layer_is_refused(self):
        image = Image(base(), layer({"etc/corrupted": os.urandom(5000)}))
        reference = self.registry.push("team/corrupted", "1", image)
        path = self.registry.blob(image.packed[1])
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        said = self.add("corrupted", reference, fails=True)
        self.assertIn("nothing of it is kept", said)
        self.nothing_is_left()

    def test_a_truncated_layer_is_refused(self):
        image = Image(base(), layer({"etc/truncated": os.urandom(5000)}))
        reference = self.registry.push("team/truncated", "1", image)
        path = self.registry.blob(image.packed[1])
        path.write_bytes(path.read_bytes()[:-1000])
        said = self.add("truncated", reference, fails=True)
        self.assertIn("nothing of it is kept", said)
        self.nothing_is_left()

    def test_what_is_wrong_is_said(self):
        missing = f"{self.registry.address}/team/app:2"
        self.assertIn("has no image", self.add("x", missing, fails=True))
        self.assertIn("no reference to an image", self.add("x", "Not A Reference", fails=True))
        said = self.home.template("add", "x", "--image", "registry.example/app:1", "--plain-http", fails=True)
        self.assertIn("is not this machine", said)
        self.assertIn("--plain-http", self.home.template("add", "x", "--image", self.reference, fails=True))
        self.assertIn("the built-in template", self.add("python", self.reference, fails=True))
        self.assertIn("there is no template \"x\"", self.home.template("remove", "x", fails=True))
        self.assertIn("required arguments", self.home.template("add", "x", fails=True))

    def test_a_hostile_layer_is_refused(self):
        image = Image(base(), layer({"way": ("link", "/etc"), "way/passwd": b"root::0:0::/:/bin/sh\n"}))
        said = self.add("hostile", self.registry.push("team/hostile", "1", image), fails=True)
        self.assertIn("a link or a file instead of a directory", said)
        self.nothing_is_left()


class Allowed(WithHome):
    def test_who_may_have_an_image(self):
        registry = Registry(auth=True)
        self.addCleanup(registry.close)
        reference = registry.push("secret/app", "1", Image(base()))
        add = ("add", "secret", "--image", reference, "--plain-http")
        said = self.home.template(*add, fails=True)
        self.assertIn("who are we?", said)
        self.assertIn("docker login", said)
        said = self.home.template(*add, "--username", "ann", "--password-stdin", stdin="wrong", fails=True)
        self.assertIn("who are we?", said)
        self.home.template(*add, "--username", "ann", "--password-stdin", stdin=PASSWORD + "\n")
        self.home.template("remove", "secret")
        # As `docker login` writes it down.
        (self.home.path / "docker").mkdir()
        login = {"auths": {registry.address: {"username": "ann", "password": PASSWORD}}}
        (self.home.path / "docker/config.json").write_text(json.dumps(login))
        self.home.template(*add)
        self.assertNotIn(PASSWORD, self.home.template("inspect", "secret", "--json"))
        self.home.template("remove", "secret")


class Endless(http.server.BaseHTTPRequestHandler):
    """A registry that never stops talking."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path.startswith("/v2/endless"):
            try:
                while True:
                    self.wfile.write(b'{"schemaVersion": 2, ' * 4096)
            except OSError:
                pass

    def log_message(self, *_):
        pass


class HostileRegistry(WithHome):
    def test_an_endless_manifest_is_refused(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        reference = f"127.0.0.1:{server.server_port}/endless:1"
        said = self.home.template("add", "x", "--image", reference, "--plain-http", fails=True)
        self.assertIn("a manifest of more than", said)


class Running(WithHome):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with_python = Image(base(), layer(python()), CHANGES, Env=["GREETING=hello", "HOME=/root"], User="0")
        with_python.save(cls.home.path / "python.tar")
        cls.home.template("add", "snake", "--tar", str(cls.home.path / "python.tar"))
        (cls.home.path / "shell.tar").write_bytes(base())
        cls.home.template("add", "shell", "--tar", str(cls.home.path / "shell.tar"))
        cls.home.template("add", "at-work", "--tar", str(cls.home.path / "python.tar"), "--workdir", "/srv/app")
        cls.server = cls.home.server(POOL_SIZE=1)
        cls.addClassCleanup(cls.server.close)

    def call(self, tool, /, **arguments):
        return self.server.request("tools/call", {"name": tool, "arguments": arguments}, timeout=120)

    def run_code(self, code, template="snake", **arguments):
        result = self.call("execute_code", code=code, template=template, **arguments)["structuredContent"]
        self.addCleanup(self.call, "stop_session", session_id=result["session_id"])
        return result

    def command(self, command, template="shell"):
        result = self.call("execute_command", command=command, template=template)["structuredContent"]
        self.addCleanup(self.call, "stop_session", session_id=result["session_id"])
        return result

    def test_the_images_own_python_runs_code(self):
        result = self.run_code("import os, sys\nprint(open('/etc/who').read().strip(), os.getcwd(), os.environ['GREETING'],"
                               " os.environ['HOME'], os.getuid())\nx = 20")
        self.assertEqual(result["stdout"], "the image /workspace hello /workspace 1000\n", result)
        session = result["session_id"]
        # A notebook's manners, from libraries that the image does not have.
        again = self.call("execute_code", code="!echo {x + 1}\nprint(await __import__('asyncio').sleep(0, x + 22))",
                          session_id=session)["structuredContent"]
        self.assertIn("21\n", again["stdout"])
        self.assertIn("42", again["stdout"])
        failed = self.call("execute_code", code="1/0", session_id=session)
        self.assertIn("ZeroDivisionError", json.dumps(failed))

    def test_files_come_and_go_with_the_layers(self):
        result = self.command("cat /srv/app/hello.py /etc/kept /etc/replaced/new; ls /etc/gone /etc/replaced", "snake")
        self.assertIn("hello from the image", result["stdout"])
        self.assertIn("kept\nnew\n", result["stdout"])
        self.assertIn("gone: No such file", result["stderr"])
        self.assertNotIn("old", result["stdout"])

    def test_programs_start_where_the_template_says(self):
        self.assertEqual(self.command("pwd", "at-work")["stdout"], "/srv/app\n")
        self.assertIn("/srv/app", self.run_code("import os; print(os.getcwd())", "at-work")["stdout"])

    def test_an_image_without_python_has_commands_and_says_what_it_lacks(self):
        self.assertEqual(self.command("cat /etc/who; id -u")["stdout"], "the image\n1000\n")
        said = json.dumps(self.call("execute_code", code="print(1)", template="shell"))
        self.assertIn("no python3", said)

    def test_nothing_of_the_host_is_in_it_and_nothing_of_the_image_can_be_changed(self):
        result = self.command("ls /; echo; ls /dev; touch /x /etc/x /bin/x /dev/x /srv/x; mkdir /proc/x; echo done > /workspace/y")
        top, devices = (set(part.split()) for part in result["stdout"].split("\n\n"))
        self.assertLessEqual(top, {"bin", "dev", "etc", "opt", "outputs", "proc", "run", "tmp", "var", "volumes", "workspace"})
        self.assertEqual(devices, {"fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"})
        self.assertEqual(result["stderr"].count("Read-only file system") + result["stderr"].count("Permission denied")
                         + result["stderr"].count("No such file"), 6, result["stderr"])
        mounts = self.command("cat /proc/self/mountinfo")["stdout"]
        self.assertNotIn("images/layers", mounts)

    def test_limits_and_processes_are_as_everywhere(self):
        result = self.run_code("import subprocess, time\nprint(subprocess.run(['sh', '-c', 'echo $$; cat /proc/1/comm'],"
                               " capture_output=True, text=True).stdout)")
        self.assertIn("belljar-guest", result["stdout"])
        slow = self.call("execute_code", code="import time\nwhile True: time.sleep(0.05)", session_id=result["session_id"],
                         timeout=1)
        self.assertIn("limit", json.dumps(slow))
        again = self.call("execute_code", code="print(time.__name__)", session_id=result["session_id"])
        self.assertEqual(again["structuredContent"]["stdout"], "time\n")

    def test_a_template_in_use_stays(self):
        self.command("true")
        self.assertIn("is in use", self.home.template("remove", "shell", fails=True))

    def test_an_unknown_template_is_an_error_that_names_the_others(self):
        said = json.dumps(self.call("execute_code", code="1", template="nope"))
        for name in ("nope", "snake", "shell", "at-work"):
            self.assertIn(name, said)


@unittest.skipUnless(os.geteuid() == 0, "only root can become somebody else")
class AsAnOrdinaryUser(unittest.TestCase):
    def test_an_image_runs(self):
        home = subprocess.run([ROOT / "scripts/ordinary-home.sh"], check=True, capture_output=True, text=True).stdout.strip()
        archive = Path(home, "image.tar")
        Image(base(), CHANGES, Env=["GREETING=hello"]).save(archive)
        archive.chmod(0o644)
        self.addCleanup(archive.unlink)
        become = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": home, "BELLJAR_HOME": home}

        def template(*arguments):
            return subprocess.run([*become, f"{home}/bin/belljar", "template", *arguments], env=env,
                                  capture_output=True, text=True, timeout=120 * PATIENCE)

        # What an earlier run may have left.
        template("remove", "ordinary")
        added = template("add", "ordinary", "--tar", str(archive))
        self.assertEqual(added.returncode, 0, added.stderr)
        call = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}
        server = subprocess.Popen([*become, f"{home}/bin/belljar", "mcp", "--toolsets", "sessions"], env=env, cwd="/",
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            def say(message):
                server.stdin.write(json.dumps(message) + "\n")
                server.stdin.flush()

            say(call)
            server.stdout.readline()
            say({"jsonrpc": "2.0", "method": "notifications/initialized"})
            say({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "execute_command", "arguments": {
                "command": "cat /etc/who /srv/app/hello.py; echo $GREETING; ls /etc/gone; ls /etc/replaced; touch /etc/x; id -u",
                "template": "ordinary"}}})
            said = server.stdout.readline()
        finally:
            server.stdin.close()
            server.wait(60 * PATIENCE)
            server.stdout.close()
        for text in ("the image", "hello from the image", "hello\\n", "No such file", "new\\n", "Read-only", "1000"):
            self.assertIn(text, said)
        # The last of the server's processes ends a moment after it.
        self.assertTrue(wait_until(lambda: template("remove", "ordinary").returncode == 0, 30 * PATIENCE))


if __name__ == "__main__":
    unittest.main()
