"""What the toolkit tests share: a server with toolkits behind a public client, and what stands outside of it."""

import contextlib
import http.server
import importlib.util
import itertools
import json
import os
import tempfile
import threading
import unittest
from pathlib import Path

# The client tests know how to keep a client of the SDK. Both files have the same name.
_path = Path(__file__).resolve().parents[1] / "clients/python/harness.py"
_spec = importlib.util.spec_from_file_location("clients_harness", _path)
clients = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(clients)
BELLJAR, PATIENCE, wait_until = clients.BELLJAR, clients.PATIENCE, clients.wait_until


class Server(clients.Kept):
    """`belljar mcp` with these arguments and variables."""

    def __init__(self, *arguments, env=None, mode="auto"):
        import mcp
        from mcp.client.stdio import StdioServerParameters, stdio_client

        self.log = tempfile.TemporaryFile("w+", prefix="belljar-stderr-")
        env = {**clients.environment(POOL_SIZE=1, LOG="info,json"), **(env or {})}
        parameters = StdioServerParameters(command=BELLJAR, args=["mcp", *arguments], env=env)
        self.keep(mcp.Client(stdio_client(parameters, errlog=self.log), mode=mode))

    def stderr(self):
        self.log.flush()
        return Path(f"/proc/self/fd/{self.log.fileno()}").read_text(errors="replace")

    def access(self):
        """The lines of the access log."""
        lines = [json.loads(line) for line in self.stderr().splitlines() if line.startswith("{")]
        return [{**line, **line.get("fields", {})} for line in lines if line.get("target") == "belljar::access"]

    def close(self):
        super().close()
        self.log.close()


class Case(unittest.TestCase):
    """One server for all tests of a class."""

    arguments, env = (), {}

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.arguments, env=cls.env)
        cls.addClassCleanup(cls.server.close)

    def result(self, tool, /, **arguments):
        return self.server.wait(self.server.client.call_tool(tool, arguments), 90)

    def call(self, tool, /, **arguments):
        result = self.result(tool, **arguments)
        self.assertFalse(result.is_error, result.content)
        return result.structured_content

    def text(self, tool, /, **arguments):
        result = self.result(tool, **arguments)
        self.assertFalse(result.is_error, result.content)
        return result.content[0].text

    def refused(self, code, tool, /, **arguments):
        """The tool must say no with this code. Returns its message."""
        result = self.result(tool, **arguments)
        self.assertTrue(result.is_error, result.content)
        told = json.loads(result.content[0].text)
        self.assertEqual(told["code"], code, told)
        return told["error"]

    def read(self, uri):
        contents = self.server.wait(self.server.client.read_resource(uri)).contents
        self.assertEqual(len(contents), 1)
        return contents[0].text

    def tools(self):
        return [tool.name for tool in self.server.wait(self.server.client.list_tools()).tools]


class Api:
    """Stands in for GitHub and for the deploy service. Remembers what it was asked."""

    def __init__(self, token="token-of-the-operator"):
        self.token, self.requests, self.numbers, self.unhealthy = token, [], itertools.count(1), False
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self):
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                outer.requests.append((self.command, self.path, dict(self.headers), body))
                status, answer = outer.answer(self.command, self.path, self.headers, body)
                data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                if status == 302:
                    self.send_header("location", "/elsewhere")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = handle_one

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def answer(self, method, path, headers, body):
        if headers.get("authorization") != f"Bearer {self.token}":
            return 401, {"message": "Bad credentials"}
        if path.startswith("/repos/octo/gone"):
            return 404, {"message": "Not Found", "documentation_url": "x"}
        if path.startswith("/repos/octo/html"):
            return 502, "<html>Bad gateway</html>"
        if path.startswith("/repos/octo/moved"):
            return 302, ""
        if path.startswith("/repos/octo/huge"):
            return 200, [{"number": n, "title": "x" * 3000, "state": "open"} for n in range(500)]
        if method == "POST" and path.endswith("/issues"):
            number = next(self.numbers)
            return 201, {"number": number, "title": body["title"], "html_url": f"https://example.com/{number}",
                         "state": "open", "user": {"login": "ada"}, "node_id": "ignored"}
        if method == "POST" and path.endswith("/pulls"):
            return 201, {"number": next(self.numbers), "title": body["title"], "html_url": "https://example.com/pr",
                         "state": "open", "head": {"ref": body["head"]}, "base": {"ref": body["base"]}}
        if method == "GET" and "/issues" in path:
            return 200, [{"number": 7, "title": "A bug", "state": "open", "html_url": "https://example.com/7",
                          "created_at": "2026-01-02T03:04:05Z", "body": "left out"}]
        if path == "/api/v1/deploy":
            return 200, {"deployment_id": "dep-1", "status": "completed", **body}
        if path.startswith("/api/v1/health/"):
            return (503, {"status": "unhealthy"}) if self.unhealthy else (200, {"status": "ok"})
        return 404, {"message": f"no {path}"}

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)


def settle(condition, what, seconds=60):
    """Waits for a condition; fails with `what` if it never holds."""
    value = wait_until(condition, seconds * PATIENCE)
    if not value:
        raise AssertionError(what)
    return value


@contextlib.contextmanager
def directory():
    with tempfile.TemporaryDirectory(prefix="belljar-toolkits-") as path:
        os.chmod(path, 0o755)
        yield Path(path)
