"""What a web page could try: names that point here, foreign origins, and what CORS lets it see."""

import json
import unittest

from harness import HttpTestCase

LIST = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
JSON = {"Content-Type": "application/json"}
# Names that look like ours, or could be made to point here.
STRANGERS = ("evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "evil.example:8775", "0.0.0.0", "0", "2130706433",
             "0x7f.1", "127.1", "localhost@evil.example", "[::ffff:127.0.0.1]", "::1.evil.example", "metadata.internal")
ORIGINS = ("null", "http://evil.example", "https://localhost", "http://localhost.evil.example", "http://127.0.0.1.evil.example",
           "http://evil.example:80", "file://", "http://localhost@evil.example", "http://127.0.0.2",
           "http://0.0.0.0", "http://[::2]", "chrome-extension://abcdef", "HTTP", "http:localhost", "", "http://xlocalhost",
           "http://localhost evil.example", "javascript:alert(1)", "http://2130706433", "http://evil.example/http://localhost")
OWN = ("http://localhost", "http://localhost:3000", "http://127.0.0.1:5173", "http://[::1]:8080")


class CorsOff(HttpTestCase):
    def post(self, **headers):
        return self.server.http("POST", "/mcp", LIST, {**JSON, **headers})

    def test_only_our_own_names_are_answered_to(self):
        port = self.server.port
        for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "LOCALHOST", "localhost."):
            self.assertEqual(self.post(Host=host).status, 200, host)
        for host in STRANGERS:
            for method, path, body in (("POST", "/mcp", LIST), ("GET", "/mcp", None), ("GET", "/health", None),
                                       ("OPTIONS", "/mcp", None), ("GET", "/metrics", None)):
                with self.subTest(host, path=path, method=method):
                    answer = self.server.http(method, path, body, {**JSON, "Host": host})
                    self.assertIn(answer.status, (400, 403))
                    self.assertNotIn(b"belljar_", answer.body)

    def test_a_host_must_be_there_once(self):
        get = b"GET /version HTTP/1.1\r\nConnection: close\r\n"
        for hosts in (b"", b"Host: localhost\r\nHost: evil.example\r\n", b"Host: evil.example\r\nHost: localhost\r\n",
                      b"Host: localhost\r\nHost: localhost\r\n", b"Host: \r\n", b"Host: local host\r\n"):
            received = self.server.raw(get + hosts + b"\r\n")
            self.assertIn(received.split(b" ")[1], (b"400", b"403"), hosts)
            self.assertNotIn(b"protocol_versions", received)

    def test_an_address_in_the_request_line_does_not_help(self):
        received = self.server.raw(b"GET http://localhost/version HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        self.assertNotIn(b"protocol_versions", received)
        received = self.server.raw(b"GET http://evil.example/version HTTP/1.0\r\n\r\n")
        self.assertNotIn(b"protocol_versions", received)

    def test_forwarded_names_count_for_nothing(self):
        answer = self.post(Host="evil.example", **{"X-Forwarded-Host": "localhost", "Forwarded": "host=localhost"})
        self.assertEqual(answer.status, 403)

    def test_foreign_origins_are_refused_and_nothing_is_run(self):
        for origin in ORIGINS:
            with self.subTest(origin):
                answer = self.post(Origin=origin)
                self.assertEqual(answer.status, 403)
                self.assertNotIn("Access-Control-Allow-Origin", answer.headers)
        self.assertEqual(self.server.http("GET", "/health", headers={"Origin": "http://evil.example"}).status, 403)

    def test_two_origins_are_one_too_many(self):
        head = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        received = self.server.raw(head + b"Origin: http://localhost\r\nOrigin: http://evil.example\r\n\r\n")
        self.assertTrue(received.startswith(b"HTTP/1.1 403 "), received)

    def test_own_origins_are_answered_without_cors_headers(self):
        for origin in OWN:
            answer = self.post(Origin=origin)
            self.assertEqual(answer.status, 200, origin)
            preflight = self.server.http("OPTIONS", "/mcp", headers={
                "Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"})
            for headers in (answer.headers, preflight.headers):
                self.assertEqual([name for name in headers if name.lower().startswith("access-control")], [])

    def test_what_a_form_can_send_is_not_read(self):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            answer = self.server.http("POST", "/mcp", LIST, {"Content-Type": kind, "Origin": "http://localhost"})
            self.assertEqual(answer.status, 415)


class CorsOn(HttpTestCase):
    arguments = ("--http-cors", "--http-origins", "https://app.example,http://localhost:3000", "--http-hosts", "jar.example")

    def preflight(self, origin, asked="content-type"):
        return self.server.http("OPTIONS", "/mcp", headers={
            "Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked})

    def test_the_origin_comes_back_as_it_was(self):
        for origin in ("https://app.example", "http://localhost:3000"):
            answer = self.server.http("POST", "/mcp", LIST, {**JSON, "Origin": origin})
            self.assertEqual((answer.status, answer.headers["Access-Control-Allow-Origin"]), (200, origin))
            self.assertIn("Origin", answer.headers["Vary"])
            exposed = {name.strip().lower() for name in answer.headers["Access-Control-Expose-Headers"].split(",")}
            self.assertIn("mcp-session-id", exposed)
            self.assertIsNone(answer.headers["Access-Control-Allow-Credentials"])

    def test_others_are_refused(self):
        for origin in (*ORIGINS, "http://app.example", "https://app.example:8443", "http://localhost:3001", "http://localhost",
                       "https://sub.app.example", "https://app.example.evil.example"):
            with self.subTest(origin):
                for answer in (self.preflight(origin), self.server.http("POST", "/mcp", LIST, {**JSON, "Origin": origin})):
                    self.assertEqual(answer.status, 403)
                    self.assertNotIn("Access-Control-Allow-Origin", answer.headers)

    def test_a_preflight_allows_only_what_the_protocol_needs(self):
        asked = ("content-type, accept, authorization, mcp-session-id, mcp-protocol-version, mcp-method, mcp-name, last-event-id, "
                 "x-evil, cookie, x-forwarded-host, bad name")
        answer = self.preflight("https://app.example", asked)
        self.assertEqual((answer.status, answer.body), (204, b""))
        allowed = {name.strip() for name in answer.headers["Access-Control-Allow-Headers"].split(",")}
        self.assertEqual(allowed, {"content-type", "accept", "authorization", "mcp-session-id", "mcp-protocol-version",
                                   "mcp-method", "mcp-name", "last-event-id"})
        methods = {name.strip() for name in answer.headers["Access-Control-Allow-Methods"].split(",")}
        self.assertEqual(methods, {"GET", "POST", "DELETE", "OPTIONS"})
        self.assertGreater(int(answer.headers["Access-Control-Max-Age"]), 0)

    def test_who_is_no_page_sees_no_cors(self):
        answer = self.server.http("POST", "/mcp", LIST, JSON)
        self.assertEqual([name for name in answer.headers if name.lower().startswith("access-control")], [])

    def test_an_added_name_is_answered_to(self):
        for host, status in (("jar.example", 200), ("JAR.example:443", 200), ("x.jar.example", 403)):
            self.assertEqual(self.server.http("GET", "/version", headers={"Host": host}).status, status, host)

    def test_the_servers_own_page_is_no_stranger(self):
        host = f"jar.example:{self.server.port}"
        answer = self.server.http("POST", "/mcp", LIST, {**JSON, "Host": host, "Origin": f"http://{host}"})
        self.assertEqual(answer.status, 200)


class CorsAndTokens(HttpTestCase):
    arguments = ("--http-cors",)

    @classmethod
    def prepare(cls):
        cls.home.token("add", "ann")

    def test_a_page_can_read_why_it_was_refused(self):
        origin = "http://localhost:3000"
        preflight = self.server.http("OPTIONS", "/mcp", headers={
            "Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"})
        self.assertEqual((preflight.status, preflight.headers["Access-Control-Allow-Headers"]), (204, "authorization"))
        answer = self.server.http("POST", "/mcp", LIST, {**JSON, "Origin": origin})
        self.assertEqual((answer.status, answer.headers["Access-Control-Allow-Origin"]), (401, origin))
        self.assertIn("WWW-Authenticate", answer.headers["Access-Control-Expose-Headers"])


if __name__ == "__main__":
    unittest.main()
