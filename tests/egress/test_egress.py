"""Real programs in real sandboxes, and what they reach."""

import json
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

import outside  # noqa: E402
from harness import HttpTestCase, Home, Server  # noqa: E402

SECRET = "the-real-secret-4711"
LOOK = """
import os, socket
def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0
print(listens(3128), listens(1080), os.environ.get("HTTPS_PROXY"), os.environ.get("no_proxy"))
"""


class Sandbox:
    """One sandbox, by the tools that act on it."""

    def __init__(self, client, **arguments):
        self.client = client
        self.id = self.ok("sandbox_create", **arguments)["sandbox_id"]

    def result(self, tool, **arguments):
        named = {} if tool == "sandbox_create" else {"sandbox_id": self.id}
        return self.client.result(tool, limit=180, **named, **arguments)

    def ok(self, tool, **arguments):
        result = self.result(tool, **arguments)
        assert not result.get("isError"), result["content"][0]["text"]
        return result["structuredContent"]

    def refused(self, tool, **arguments):
        result = self.result(tool, **arguments)
        assert result.get("isError"), result
        return result["structuredContent"]

    def run(self, code, language="python"):
        ran = self.ok("code_run", language=language, code=code, timeout=150)
        assert ran["success"], ran
        return ran["stdout"]

    def shell(self, line):
        """Exit code, and all that was written."""
        ran = self.client.result("execute_command", limit=180, command=line, session_id=self.id, timeout=150)["structuredContent"]
        return ran["exit_code"], ran["stdout"] + ran["stderr"]

    def network(self, **arguments):
        return self.ok("sandbox_network", **arguments)

    def last(self):
        """The last connection that was written down."""
        return self.network()["connections"][-1]


class NoNetwork(HttpTestCase):
    arguments = ("--toolsets", "all")

    def test_by_default_nothing_listens_and_nothing_can_be_asked_for(self):
        sandbox = Sandbox(self.server.client())
        self.assertEqual(sandbox.run(LOOK).split(), ["False", "False", "None", "None"])
        for mode in ("allowlist", "open"):
            told = sandbox.refused("sandbox_network", network=mode)
            self.assertEqual(told["code"], "NOT_AVAILABLE")
            self.assertIn("network.max", told["error"])
            made = self.server.client().result("sandbox_create", network=mode)
            self.assertEqual((made["isError"], made["structuredContent"]["code"]), (True, "NOT_AVAILABLE"))
        self.assertEqual(sandbox.network()["network"], "none")


class Network(HttpTestCase):
    @classmethod
    def prepare(cls):
        directory = tempfile.TemporaryDirectory(prefix="belljar-egress-")
        cls.addClassCleanup(directory.cleanup)
        cls.outside = outside.Outside(directory.name)
        cls.addClassCleanup(cls.outside.close)
        cls.python, cls.node = outside.python_registry(), outside.node_registry()
        places = {f"{cls.outside.name}:{cls.outside.http}", f"{cls.outside.name}:{cls.outside.https}"}
        for registry in (cls.python, cls.node):
            places |= registry[1] if registry else set()
        cls.audit = Path(directory.name, "audit.jsonl")
        cls.arguments = ("--toolsets", "all", "--network-max", "open", "--network-private", ",".join(sorted(places)), "--audit-file", str(cls.audit))
        cls.env = {"SSL_CERT_FILE": cls.outside.bundle}

    def setUp(self):
        self.url = f"http://{self.outside.name}:{self.outside.http}"
        self.secure = f"https://{self.outside.name}:{self.outside.https}"

    def sandbox(self, **arguments):
        sandbox = Sandbox(self.server.client(), **{"network": "allowlist", **arguments})
        self.addCleanup(sandbox.result, "sandbox_destroy")
        return sandbox

    def test_programs_find_the_way_by_themselves(self):
        sandbox = self.sandbox()
        self.assertEqual(sandbox.run(LOOK).split(), ["True", "True", "http://127.0.0.1:3128", "localhost,127.0.0.1,::1"])
        self.assertIn("Hello from outside", sandbox.run(f"import urllib.request as u; print(u.urlopen({self.url!r}).read())"))
        self.assertIn("Hello from outside", sandbox.run(f"import requests; print(requests.get({self.url!r}).text)"))
        fetch = f"console.log(await (await fetch({json.dumps(self.url)})).text())"
        self.assertIn("Hello from outside", sandbox.run(fetch, "javascript"))
        for line in (f"curl -sSf {self.url}/", f"curl -sSf --socks5-hostname 127.0.0.1:1080 {self.url}/",
                     f"curl -sSf -d x=y -H 'Expect: 100-continue' {self.url}/echo && curl -sSf {self.url}/",
                     f"curl -sSfk {self.secure}/",
                     f"node --input-type=module -e {json.dumps(fetch)}"):
            code, text = sandbox.shell(line)
            self.assertEqual(code, 0, (line, text))
            self.assertIn("Hello from outside", text)
        last = sandbox.last()
        self.assertEqual((last["to"], last["outcome"]), (f"{self.outside.name}:{self.outside.http}", "allowed"))
        self.assertGreater(last["bytes_received"], 50)

    def test_git_clones(self):
        git = lambda *words: subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], check=True, capture_output=True)
        with tempfile.TemporaryDirectory() as work:
            git("init", "-q", work)
            Path(work, "hello.txt").write_text("cloned")
            git("-C", work, "add", ".")
            git("-C", work, "commit", "-qm", "first")
            git("clone", "-q", "--bare", work, str(self.outside.directory / "www" / "it.git"))
        git("-C", str(self.outside.directory / "www" / "it.git"), "update-server-info")
        code, text = self.sandbox().shell(f"git clone {self.url}/it.git && cat it/hello.txt")
        self.assertEqual(code, 0, text)
        self.assertIn("cloned", text)

    def test_pip_installs_from_the_registry_of_this_machine(self):
        if not self.python:
            self.skipTest("this machine itself does not reach its Python registry")
        sandbox = self.sandbox()
        code, text = sandbox.shell(f"python -m pip install --index-url {self.python[0]} iniconfig")
        self.assertEqual(code, 0, (text, sandbox.network()["connections"]))
        # In the interpreter that was there before.
        self.assertIn("iniconfig", sandbox.run("import iniconfig; print(iniconfig.__file__)"))

    def test_npm_installs_from_the_registry_of_this_machine(self):
        if not self.node:
            self.skipTest("this machine itself does not reach its npm registry")
        sandbox = self.sandbox()
        line = f"npm install --no-audit --no-fund --registry {self.node[0]} is-number && node -p 'require(\"is-number\")(7)'"
        code, text = sandbox.shell(line)
        self.assertEqual(code, 0, (text, sandbox.network()["connections"]))
        self.assertIn("true", text)

    def test_the_browser_goes_out_and_stays_in(self):
        sandbox = self.sandbox()
        self.assertEqual(sandbox.ok("browser_goto", url=self.url, timeout=120)["title"], "Outside")
        sandbox.run("import subprocess; open('page.html', 'w').write('<title>Inside</title>')\n"
                    "server = subprocess.Popen(['python', '-m', 'http.server', '8123'])\n"
                    "import time, urllib.request\n"
                    "for _ in range(600):\n"
                    "    try: urllib.request.urlopen('http://localhost:8123/page.html'); break\n"
                    "    except OSError: time.sleep(0.1)")
        self.assertEqual(sandbox.ok("browser_goto", url="http://localhost:8123/page.html", timeout=120)["title"], "Inside")
        sandbox.run("server.kill()")
        refused = sandbox.ok("browser_goto", url="http://elsewhere.example/", timeout=120)
        self.assertNotIn("Outside", json.dumps(refused))
        self.assertTrue(sandbox.last()["outcome"].startswith("not_allowed: "), sandbox.last())
        # A page whose requests are looked into: TLS ends at the proxy, and Chromium believes it.
        other = self.sandbox()
        other.network(network="allowlist", allow=[f"{self.outside.name}:{self.outside.https} GET HEAD"])
        self.assertEqual(other.ok("browser_goto", url=self.secure, timeout=120)["title"], "Outside")

    def test_what_is_not_listed_is_refused_and_said_to_be(self):
        sandbox = self.sandbox()
        for url in ("http://elsewhere.example/", "https://elsewhere.example/", "http://169.254.169.254/latest/",
                    f"http://127.0.0.2:{self.outside.http}/", "http://2130706433/"):
            code, text = sandbox.shell(f"curl -sSf {url}")
            self.assertNotEqual(code, 0, (url, text))
            self.assertIn(sandbox.last()["outcome"].split(":")[0], ("not_allowed", "malformed"))
        # A redirect is followed by the program, and judged like everything else.
        code, text = sandbox.shell(f"curl -sSfL {self.url}/away")
        self.assertNotEqual(code, 0, text)
        self.assertIn("elsewhere.example:80 is not on", sandbox.last()["outcome"])
        code, text = sandbox.shell("python -c \"import socket; socket.getaddrinfo('example.org', 443)\"")
        self.assertNotEqual(code, 0, "names are not looked up inside")

    def test_open_is_open_to_the_public_alone(self):
        sandbox = self.sandbox(network="open")
        self.assertEqual(sandbox.shell(f"curl -sSf {self.url}/")[0], 0, "named by the operator")
        for url in (f"http://127.0.0.2:{self.outside.http}/", f"http://[::1]:{self.outside.http}/", "http://localhost:1/",
                    "http://169.254.169.254/", "http://10.0.0.1/"):
            code, _ = sandbox.shell(f"curl -sSf --noproxy '' {url}")
            self.assertNotEqual(code, 0, url)
            self.assertTrue(sandbox.last()["outcome"].startswith("private: "), sandbox.last())

    def test_it_can_be_changed_while_everything_runs(self):
        sandbox = self.sandbox(network="none")
        get = f"import urllib.request as u; print(u.urlopen({self.url!r}).read())"
        self.assertEqual(sandbox.run(LOOK).split(), ["False", "False", "None", "None"])
        self.assertEqual(sandbox.network(network="allowlist")["network"], "allowlist")
        self.assertIn("Hello", sandbox.run(get))
        told = sandbox.network(allow=["other.example:443"])
        self.assertEqual(told["allow"], ["other.example:443"])
        self.assertIn("not on this sandbox's allow-list", sandbox.refused("code_run", language="python", code=get)["error"])
        sandbox.network(network="none")
        self.assertEqual(sandbox.run(LOOK).split(), ["False", "False", "None", "None"])
        sandbox.network(network="open")
        self.assertIn("Hello", sandbox.run(get))
        self.assertIn("HOST", sandbox.refused("sandbox_network", network="allowlist", allow=["https://x/"])["hint"])

    def test_connections_are_counted(self):
        sandbox = self.sandbox()
        sandbox.shell(f"curl -sS {self.url}/; curl -sS http://elsewhere.example/")
        records = sandbox.network()
        self.assertGreaterEqual(records["connections_total"], 2)
        self.assertEqual(records["connections"][-1]["method"], "GET")

    def test_connections_are_in_the_audit_log(self):
        sandbox = self.sandbox()
        sandbox.shell(f"curl -sS {self.url}/; curl -sS http://elsewhere.example/")
        deadline, found = time.monotonic() + 30, {}
        while len(found) < 2 and time.monotonic() < deadline:
            records = map(json.loads, self.audit.read_text().splitlines())
            found = {record["to"]: record for record in records if record["event"] == "connection" and record["sandbox"] == sandbox.id}
            time.sleep(0.1)
        allowed, refused = found[f"{self.outside.name}:{self.outside.http}"], found["elsewhere.example:80"]
        self.assertEqual((allowed["outcome"], refused["outcome"], refused["reason"]), ("allowed", "refused", "not_allowed"))
        self.assertGreater(allowed["bytes_in"], 50)
        self.assertGreater(allowed["bytes_out"], 50)


class Secrets(HttpTestCase):
    @classmethod
    def prepare(cls):
        directory = tempfile.TemporaryDirectory(prefix="belljar-egress-")
        cls.addClassCleanup(directory.cleanup)
        cls.outside = at = outside.Outside(directory.name)
        cls.addClassCleanup(at.close)
        cls.arguments = ("--toolsets", "all", "--network-max", "allowlist", "--network-default", "allowlist",
                         "--network-private", f"{at.name}:{at.http},{at.name}:{at.https}",
                         "--network-secrets", f"API_KEY={at.name}:{at.https}/Authorization")
        cls.env = {"SSL_CERT_FILE": at.bundle, "API_KEY": SECRET}

    def test_code_uses_a_secret_that_it_never_sees(self):
        sandbox = Sandbox(self.server.client())
        url = f"https://{self.outside.name}:{self.outside.https}/echo"
        placeholder = sandbox.run("import os; print(os.environ['API_KEY'])").strip()
        self.assertNotIn(SECRET, placeholder)
        programs = [
            lambda: sandbox.run(f"import requests, os; r = requests.get({url!r}, headers={{'Authorization': 'Bearer ' + os.environ['API_KEY']}});"
                                "print(r.text, r.headers)"),
            lambda: sandbox.run(f"const r = await fetch({json.dumps(url)}, {{ headers: {{ Authorization: 'Bearer ' + process.env.API_KEY }} }});"
                                "console.log(await r.text(), [...r.headers])", "javascript"),
            lambda: sandbox.shell(f"curl -sSfi -H \"Authorization: Bearer $API_KEY\" {url}")[1],
            lambda: sandbox.shell(f"curl -sSfi -u \"me:$API_KEY\" {url}")[1],
            lambda: sandbox.shell(f"python -c \"import urllib.request as u, os; r = u.urlopen(u.Request('{url}', headers={{'Authorization':"
                                  " 'Bearer ' + os.environ['API_KEY']})); print(r.read(), r.headers)\"")[1],
        ]
        for program in programs:
            self.outside.secure.heard.clear()
            shown = program()
            self.assertEqual(len(self.outside.secure.heard), 1, shown)
            sent = self.outside.secure.heard[0][2]["Authorization"]
            self.assertTrue(SECRET in sent or sent.startswith("Basic "), sent)
            self.assertNotIn(SECRET, shown)
            self.assertIn("echo", shown)
        self.assertEqual(sandbox.network()["secrets"], [{"variable": "API_KEY", "host": self.outside.name}])

    def test_the_browser_believes_what_the_sandbox_believes(self):
        sandbox = Sandbox(self.server.client())
        page = sandbox.ok("browser_goto", url=f"https://{self.outside.name}:{self.outside.https}/", timeout=120)
        self.assertEqual(page["title"], "Outside")

    def test_it_does_not_travel_in_the_clear(self):
        sandbox = Sandbox(self.server.client())
        code, text = sandbox.shell(f"curl -sS -H \"Authorization: $API_KEY\" http://{self.outside.name}:{self.outside.http}/echo")
        self.assertIn("has a secret", text)
        self.assertEqual(self.outside.plain.heard, [])
        self.assertTrue(sandbox.last()["outcome"].startswith("secret: "))

    def test_nobody_gets_more_than_the_operator_allows(self):
        sandbox = Sandbox(self.server.client())
        self.assertEqual(sandbox.refused("sandbox_network", network="open")["code"], "NOT_AVAILABLE")
        sandbox.network(allow=["elsewhere.example"])
        _, text = sandbox.shell("curl -sS http://elsewhere.example/")
        self.assertIn("not on the operator's allow-list", text)


class Restart(unittest.TestCase):
    def test_a_sandbox_keeps_its_network_when_the_server_is_killed(self):
        with tempfile.TemporaryDirectory() as directory:
            at = outside.Outside(directory)
            self.addCleanup(at.close)
            home = Home()
            self.addCleanup(home.remove)
            options = ("--toolsets", "all", "--network-max", "open", "--network-private", f"{at.name}:{at.http},{at.name}:{at.https}",
                       "--network-secrets", f"API_KEY={at.name}:{at.https}/Authorization")
            env = {"SSL_CERT_FILE": at.bundle, "API_KEY": SECRET}
            server = Server(*options, home=home, env=env)
            self.addCleanup(server.kill)
            sandbox = Sandbox(server.client(), network="open")
            get = f"curl -sS http://{at.name}:80/ ; curl -sSf https://{at.name}:{at.https}/"
            self.assertIn("Hello", sandbox.shell(get)[1])
            sandbox.network(allow=[f"{at.name}:{at.https}"])
            server.kill()
            with Server(*options, home=home, env=env) as again:
                sandbox.client = again.client()
                self.assertEqual(sandbox.network()["allow"], [f"{at.name}:{at.https}"])
                self.assertIn("Hello", sandbox.shell(get)[1])
                self.assertIn("not on", sandbox.shell("curl -sS http://elsewhere.example/")[1])


if __name__ == "__main__":
    unittest.main()
