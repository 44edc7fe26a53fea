"""The door itself: what is there, what is not, and where it listens."""

import json
import socket
import subprocess
import unittest

from harness import BELLJAR, Home, HttpTestCase, PATIENCE, SMALL, Server


class Open(HttpTestCase):
    def test_a_plain_get_of_mcp_tells_the_status(self):
        for headers in ({}, {"Accept": "application/json"}, {"Accept": "*/*"}, {"Accept": "text/html"}):
            answer = self.server.http("GET", "/mcp", headers=headers)
            status = answer.json()
            self.assertEqual(answer.status, 200)
            self.assertEqual((status["name"], status["status"], status["authentication"]), ("belljar", "ok", "none"))
            self.assertEqual(status["transport"], "streamable-http")
            self.assertIn("2026-07-28", status["protocol_versions"])
            self.assertGreaterEqual(status["tools"], 22)

    def test_other_methods_are_refused_and_told_which_are_not(self):
        for method in ("PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "CONNECT"):
            with self.subTest(method):
                answer = self.server.http(method, "/mcp")
                self.assertEqual(answer.status, 405)
                allowed = {name.strip() for name in answer.headers["Allow"].split(",")}
                self.assertLessEqual({"GET", "POST"}, allowed)
                self.assertNotIn(method, allowed - {"DELETE"})
        self.assertEqual(self.server.http("HEAD", "/mcp").status, 405)
        self.assertEqual(self.server.http("POST", "/health", b"{}").status, 405)

    def test_a_stream_needs_a_session(self):
        answer = self.server.http("GET", "/mcp", headers={"Accept": "text/event-stream"})
        self.assertEqual(answer.status, 405)

    def test_health_has_the_agreed_shape(self):
        answer = self.server.http("GET", "/health")
        self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "application/json"))
        health = answer.json()
        self.assertLessEqual({"status", "version", "build_time", "uptime", "checks"}, set(health))
        self.assertEqual(health["status"], "healthy")
        self.assertNotIn("reason", health)
        self.assertGreater(health["uptime"], 0)
        self.assertLessEqual({"pool", "isolation", "disk", "memory"}, set(health["checks"]))
        pool = health["checks"]["pool"]
        kinds = {"interpreter_ready": bool, "session_pool_size": int, "session_pool_available": int,
                 "all_sessions_healthy": bool, "startup_time_seconds": float}
        self.assertEqual({name: type(pool[name]) for name in kinds}, kinds)
        self.assertTrue(pool["interpreter_ready"])
        self.assertEqual(pool["session_pool_size"], 1)

    def test_version(self):
        version = self.server.http("GET", "/version").json()
        self.assertEqual(version["name"], "belljar")
        shown = subprocess.run([BELLJAR, "--version"], capture_output=True, text=True, check=True).stdout
        self.assertIn(version["version"], shown)
        self.assertEqual(version["version"], self.server.http("GET", "/health").json()["version"])

    def test_metrics_are_open_while_the_door_is(self):
        answer = self.server.http("GET", "/metrics")
        self.assertEqual(answer.status, 200)
        self.assertTrue(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
        for name in ("belljar_http_requests_total", "belljar_pool_size", "belljar_uptime_seconds", "belljar_build_info"):
            self.assertRegex(answer.body.decode(), rf"(?m)^{name}[ {{]")

    def test_what_is_not_there_is_told_as_json(self):
        for path in ("/mcp/", "/mcp/x", "/.well-known/oauth-protected-resource", "/health/../etc/passwd", "//mcp", "/dashboard/none",
                     "/%6dcp", "/favicon.ico"):
            with self.subTest(path):
                answer = self.server.http("GET", path)
                self.assertEqual(answer.status, 404)
                self.assertIn("/mcp", answer.json()["error"]["message"])

    def test_replies_are_not_guessed_at_or_kept(self):
        for path in ("/mcp", "/health", "/version", "/nowhere"):
            headers = self.server.http("GET", path).headers
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
            self.assertEqual(headers["Cache-Control"], "no-store")

    def test_a_port_in_use_is_explained(self):
        home = Home()
        self.addCleanup(home.remove)
        done = serve(home, "--port", str(self.server.port))
        self.assertEqual((done.returncode, home.left()), (1, []))
        self.assertIn(f"cannot listen on 127.0.0.1:{self.server.port}", done.stderr)
        self.assertIn("--port", done.stderr)


class Closed(HttpTestCase):
    @classmethod
    def prepare(cls):
        cls.token = cls.home.token("add", "ann")
        cls.operator = cls.home.token("add", "ops", "--operator")

    def bearer(self, token):
        return {"Authorization": f"Bearer {token}"}

    def test_only_calls_need_a_token(self):
        for path in ("/health", "/version"):
            self.assertEqual(self.server.http("GET", path).status, 200)
        self.assertEqual(self.server.http("GET", "/mcp").json()["authentication"], "bearer")
        self.assertEqual(self.server.http("OPTIONS", "/mcp").status, 204)
        self.assertEqual(self.server.client().post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).status, 401)
        self.assertEqual(len(self.server.client(self.token).request("tools/list")["tools"]), 22)

    def test_metrics_are_for_the_operator(self):
        answers = {who: self.server.http("GET", "/metrics", headers=headers) for who, headers in (
            ("nobody", {}), ("caller", self.bearer(self.token)), ("operator", self.bearer(self.operator)))}
        self.assertEqual({who: answer.status for who, answer in answers.items()},
                         {"nobody": 401, "caller": 403, "operator": 200})
        self.assertIn("--operator", answers["caller"].json()["error"]["message"])
        self.assertTrue(answers["nobody"].headers["WWW-Authenticate"].startswith("Bearer "))
        self.assertNotIn("belljar_", answers["caller"].body.decode() + answers["nobody"].body.decode())


class Settings(unittest.TestCase):
    def test_the_environment_of_the_session_server_is_understood(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        env = {"MCP_SERVER_HOST": "127.0.0.1", "MCP_SERVER_PORT": str(port), "MCP_ENABLE_CORS": "true"}
        home = Home()
        self.addCleanup(home.remove)
        with Server("--port", str(port), home=home, env=env) as server:
            pass
        # Without the flag, so that it is the variable that counts.
        with subprocess.Popen([BELLJAR, "serve", *SMALL], env=home.environment(env), stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as process:
            try:
                line = next(line for line in process.stderr if "listening" in line)
                self.assertIn(f"http://127.0.0.1:{port}/mcp", line)
                server.port = port
                origin = "http://localhost:3000"
                answer = server.http("GET", "/version", headers={"Origin": origin})
                self.assertEqual(answer.headers["Access-Control-Allow-Origin"], origin)
            finally:
                process.terminate()
                process.stderr.read()
        self.assertEqual(home.left(), [])

    def test_an_open_door_is_not_shown_to_the_world(self):
        home = Home()
        self.addCleanup(home.remove)
        for host in ("0.0.0.0", "::"):
            done = serve(home, "--host", host, "--port", "0")
            self.assertEqual((done.returncode, home.left()), (1, []), done.stderr)
            self.assertIn("belljar token add", done.stderr)
        home.token("add", "ann")
        with Server("--host", "0.0.0.0", home=home, ready=False) as server:
            self.assertEqual(server.http("GET", "/health", headers={"Host": "10.1.2.3"}).json()["version"][:1].isdigit(), True)
            self.assertEqual(server.http("GET", "/health", headers={"Host": "evil.example"}).status, 403)

    def test_settings_that_make_no_sense_are_told_at_the_start(self):
        home = Home()
        self.addCleanup(home.remove)
        for arguments, names in ((("--port", "99999"), "99999"), (("--host", "no such host"), "no such host"),
                                 (("--volumes", "a=relative"), "absolute"),
                                 (("--toolsets", "nonsense"), "nonsense"),
                                 (("--auth-scopes", "x"), "auth.issuer")):
            done = serve(home, *arguments)
            self.assertNotEqual(done.returncode, 0, arguments)
            self.assertIn(names, done.stderr)

    def test_a_token_file_that_others_can_read_is_refused(self):
        home = Home()
        self.addCleanup(home.remove)
        home.token("add", "ann")
        (home.path / "tokens.json").chmod(0o644)
        done = serve(home)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("tokens.json", done.stderr)
        (home.path / "tokens.json").chmod(0o600)
        (home.path / "tokens.json").write_text(json.dumps({"version": 1}) + "x")
        self.assertNotEqual(serve(home).returncode, 0)


def serve(home, *arguments):
    """A server that should not start."""
    arguments = arguments if "--port" in arguments else (*arguments, "--port", "0")
    return subprocess.run([BELLJAR, "serve", *arguments], env=home.environment(), capture_output=True, text=True,
                          timeout=30 * PATIENCE)


if __name__ == "__main__":
    unittest.main()
