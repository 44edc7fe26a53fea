"""A caller's trace goes on through the server into the sandbox, and to a collector."""

import http.server
import threading
import unittest

from harness import HttpTestCase, wait_until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
LOOK = "import os; print(os.environ.get('TRACEPARENT'))"


class Collector(http.server.ThreadingHTTPServer):
    """Takes what OpenTelemetry sends, as it is."""

    def __init__(self):
        self.received = []
        super().__init__(("127.0.0.1", 0), Post)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Post(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def seen(client, tool, headers=None, **arguments):
    message = client.message("tools/call", {"name": tool, "arguments": arguments})
    answer = client.post(message, headers or {})
    return answer.message()["result"]["structuredContent"]["stdout"].strip()


class Untold(HttpTestCase):
    def test_code_and_commands_continue_the_callers_trace(self):
        for era in ("new", "plain", "session"):
            with self.subTest(era):
                client = self.server.client(era=era)
                context = client.context()
                header = {"traceparent": PARENT}
                self.assertEqual(seen(client, "run_code", header, context_id=context, code=LOOK), PARENT)
                self.assertEqual(seen(client, "execute_command", header, session_id=context,
                                      command="echo $TRACEPARENT"), PARENT)
                self.assertEqual(seen(client, "run_code", context_id=context, code=LOOK), "None")
                nonsense = {"traceparent": "00-zz; rm -rf /"}
                self.assertEqual(seen(client, "run_code", nonsense, context_id=context, code=LOOK), "None")

    def test_what_the_message_says_counts_more_than_the_header(self):
        client = self.server.client()
        context = client.context()
        other = PARENT.replace("4bf9", "aaaa")
        message = client.message("tools/call", {"name": "run_code", "arguments": {"context_id": context, "code": LOOK}})
        message["params"]["_meta"]["traceparent"] = other
        answer = client.post(message, {"traceparent": PARENT}).message()
        self.assertEqual(answer["result"]["structuredContent"]["stdout"].strip(), other)


class Told(HttpTestCase):
    @classmethod
    def prepare(cls):
        cls.collector = Collector()
        cls.addClassCleanup(cls.collector.server_close)
        cls.addClassCleanup(cls.collector.shutdown)
        cls.arguments = ("--otel-endpoint", f"http://127.0.0.1:{cls.collector.server_port}")

    def test_spans_reach_the_collector_and_the_sandbox_hangs_below_them(self):
        client = self.server.client()
        context = client.context()
        inside = seen(client, "run_code", {"traceparent": PARENT}, context_id=context, code=LOOK)
        version, trace, span, flags = inside.split("-")
        self.assertEqual((trace, flags), (TRACE, "01"))
        self.assertNotEqual(span, PARENT.split("-")[2])
        arrived = lambda: any(bytes.fromhex(span) in body and bytes.fromhex(TRACE) in body
                              for _, body in self.collector.received)
        self.assertTrue(wait_until(arrived, 30))
        self.assertTrue(all(path == "/v1/traces" for path, _ in self.collector.received))
        self.assertFalse(any(LOOK.encode() in body for _, body in self.collector.received))


if __name__ == "__main__":
    unittest.main()
