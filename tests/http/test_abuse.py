"""Requests that nobody sends by accident. Whatever comes, others are served and memory stays bounded."""

import asyncio
import json
import re
import resource
import sys
import time
import unittest

from harness import Background, HttpTestCase, PATIENCE, meta, wait_until

HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
# The server's patience with headers and with bodies.
SERVER_PATIENCE = 30
CONNECTIONS = 10_000


def request(body=LIST, extra=b""):
    return HEAD + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


def statuses(received):
    """Of all answers in a stream. None of ours has such a line in its body."""
    return [int(status) for status in re.findall(rb"(?:^|\r\n|})HTTP/1\.1 (\d+) ", received)]


class Abuse(HttpTestCase):
    # How often somebody may call is the other class's subject.
    arguments = ("--http-rate", "0")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # These two take as long as the server waits, so they do it beside all the others.
        cls.half_sent = Background(cls.server.raw, HEAD + b"Content-Length: 1000\r\n\r\n{\"half\":", timeout=90)
        cls.slow = SlowLoris(cls.server, 300)
        cls.waiting = Background(cls.slow.go_on)

    def setUp(self):
        self.before = self.server.rss()

    def tearDown(self):
        self.assert_healthy()
        self.assertEqual(self.server.client().call("list_contexts")["total"], 0)
        self.assertLess(self.server.rss() - self.before, 400, "megabytes more than before this test")

    def flood(self, stream, parts):
        try:
            for part in parts:
                stream.sendall(part)
        except OSError:
            pass  # the server has said what it had to say

    def send_large(self, head, parts):
        with self.server.connect() as stream:
            stream.sendall(head)
            sending = Background(self.flood, stream, parts)
            received = b""
            try:
                while part := stream.recv(65536):
                    received += part
            except ConnectionResetError:
                pass
        sending.join()
        return received

    def test_a_body_of_100_mb(self):
        size, part = 100 << 20, b" " * (1 << 20)
        received = self.send_large(HEAD + b"Content-Length: %d\r\n\r\n" % size, [part] * 100)
        self.assertEqual(statuses(received), [413])
        self.assertIn(b"http.body_limit", received)

    def test_a_body_of_100_mb_in_chunks(self):
        chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
        received = self.send_large(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", [chunk] * 100 + [b"0\r\n\r\n"])
        self.assertEqual(statuses(received), [413])

    def test_a_body_of_100_mb_is_not_even_asked_for(self):
        with self.server.connect() as stream:
            stream.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (100 << 20))
            self.assertTrue(stream.recv(65536).startswith(b"HTTP/1.1 413 "))

    def test_who_asks_whether_to_go_on_may(self):
        with self.server.connect() as stream:
            stream.sendall(HEAD + b"Connection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(LIST))
            self.assertTrue(stream.recv(25).startswith(b"HTTP/1.1 100 "))
            stream.sendall(LIST)
            received = b""
            while part := stream.recv(65536):
                received += part
        self.assertIn(b"HTTP/1.1 200 OK", received)

    def test_an_announcement_beyond_all_bounds(self):
        for size in (b"99999999999999999999999999", b"-1", b"1e9", b"0x10", b"", b"+5"):
            received = self.server.raw(HEAD + b"Content-Length: " + size + b"\r\n\r\n", half_close=True)
            self.assertLessEqual(len(statuses(received)), 1, size)
            self.assertIn(statuses(received), ([], [400], [413]), size)

    def test_headers_without_end(self):
        for name, head in (
                ("one long", b"X: " + b"a" * 150_000 + b"\r\n"), ("endless", b"X: " + b"a" * 5_000_000),
                ("many", b"".join(b"X-%d: a\r\n" % n for n in range(200))),
                ("one long name", b"a" * 100_000 + b": x\r\n")):
            with self.subTest(name):
                received = self.server.raw(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + head + b"\r\n")
                self.assertIn(statuses(received), ([], [431], [400]))
        received = self.server.raw(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertIn(statuses(received), ([], [431], [414], [400]))

    def test_bytes_that_do_not_belong(self):
        for head in (b"GET /version HTTP/1.1\r\nHost: local\0host\r\n\r\n", b"GET /ver\0sion HTTP/1.1\r\nHost: localhost\r\n\r\n",
                     b"GET /version HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n", b"\0" * 1000, b"\x16\x03\x01\x02\x00\x01" * 50,
                     b"GET /version HTTP/1.1\r\nHost : localhost\r\n\r\n", b"GET /version HTTP/9.9\r\nHost: localhost\r\n\r\n",
                     b"GET /version HTTP/1.1\r\n folded: x\r\nHost: localhost\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            with self.subTest(head[:60]):
                self.assertIn(statuses(self.server.raw(head, half_close=True)), ([], [400], [403], [505]))

    def test_json_as_deep_as_the_sea(self):
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            deep = opening * 100_000 + b"1" + closing * 100_000
            bodies = (deep, opening * 100_000,
                      b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + deep + b"}",
                      b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_contexts","arguments":' + deep + b"}}",
                      b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":' + deep + b"}}",
                      b'{"jsonrpc":"2.0","id":' + deep + b',"method":"tools/list"}',
                      b'{"jsonrpc":"2.0","id":1,"result":' + deep + b"}",
                      b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":' + deep + b"}")
            for number, body in enumerate(bodies):
                with self.subTest(number, opening=opening):
                    answer = self.server.http("POST", "/mcp", body, {"Content-Type": "application/json"})
                    self.assertIn(answer.status, (200, 202, 400))
                    if answer.status == 200 and number != 3:
                        self.assertIn("error", answer.message())

    def test_ids_of_every_size(self):
        for given in ("x" * 1_000_000, 2 ** 63 - 1, -(2 ** 63), "\u0000", "\ud800", "7" * 400, "a\r\nX: y"):
            answer = self.server.http("POST", "/mcp", json.dumps({"jsonrpc": "2.0", "id": given, "method": "tools/list"}),
                                      {"Content-Type": "application/json"})
            self.assertIn(answer.status, (200, 400))
            if answer.status == 200:
                self.assertEqual(answer.message()["id"], given)
        for text in (b"1e400", b"1" * 400, b"1.5", b"18446744073709551616", b"true", b"[]"):
            body = b'{"jsonrpc":"2.0","id":' + text + b',"method":"tools/list"}'
            answer = self.server.http("POST", "/mcp", body, {"Content-Type": "application/json"})
            self.assertIn(answer.status, (200, 400), text)
            self.assertLess(len(answer.body), 100_000)

    def test_text_that_is_no_text(self):
        call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"create_context","arguments":{"name":"%s"}}}'
        for bad in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\0", b"\\ud800"):
            answer = self.server.http("POST", "/mcp", call % bad, {"Content-Type": "application/json"})
            message = answer.message()
            self.assertTrue("error" in message or message["result"]["isError"], (bad, message))
        answer = self.server.http("POST", "/mcp", call % b"\\u0000", {"Content-Type": "application/json"})
        self.assertTrue(answer.message()["result"]["isError"])

    def test_requests_in_a_row_are_answered_in_order(self):
        bodies = [json.dumps({"jsonrpc": "2.0", "id": n, "method": "ping"}).encode() for n in range(20)]
        data = b"".join(request(body) for body in bodies[:-1]) + request(bodies[-1], b"Connection: close\r\n")
        received = self.server.raw(data)
        self.assertEqual(statuses(received), [200] * 20)
        self.assertEqual([int(n) for n in re.findall(rb'"id":(\d+)', received)], list(range(20)))

    def test_nothing_is_smuggled(self):
        hidden = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
        chunked = b"0\r\n\r\n" + hidden
        shapes = {
            "length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
            "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n" % len(chunked) + chunked,
            "two lengths": b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(hidden) + hidden,
            "a list of lengths": b"Content-Length: 0, %d\r\n\r\n" % len(hidden) + hidden,
            "an odd encoding": b"Transfer-Encoding: xchunked\r\n\r\n" + chunked,
            "chunked but not last": b"Transfer-Encoding: chunked, identity\r\n\r\n" + chunked,
            "a space before": b"Content-Length : 0\r\n\r\n" + hidden,
            "a bare line feed": b"Content-Length: 0\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
        }
        for name, shape in shapes.items():
            with self.subTest(name):
                received = self.server.raw(HEAD + shape, half_close=True)
                self.assertNotIn(b"protocol_versions", received, "the hidden request was answered")
                self.assertLessEqual(len(statuses(received)), 1)
                self.assertIn(statuses(received), ([], [400]))

    def test_chunks_that_do_not_add_up(self):
        for body in (b"FFFFFFFFFFFFFFFFFF\r\n", b"-1\r\nx\r\n0\r\n\r\n", b"zz\r\n", b"5\r\nabc\r\n0\r\n\r\n",
                     b"1;" + b"e" * 100_000 + b"\r\nx\r\n0\r\n\r\n"):
            received = self.server.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body, half_close=True)
            self.assertIn(statuses(received), ([], [400]), body[:40])

    def test_ten_thousand_idle_connections(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        count = min(CONNECTIONS, hard - 500)
        if count < CONNECTIONS:
            print(f"\nonly {count} connections: the hard limit of open files is {hard}", file=sys.stderr)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 400), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        idle = []
        try:
            for _ in range(count):
                idle.append(self.server.connect())
            self.assertEqual(len(self.server.client().request("tools/list")["tools"]), 22)
            self.assert_healthy()
            gauge = lambda: int(re.search(rb"(?m)^belljar_connections (\d+)", self.server.http("GET", "/metrics").body)[1])
            self.assertTrue(wait_until(lambda: gauge() >= count * 0.9, 20), gauge())
            grown = self.server.rss() - self.before
            self.assertLess(grown * 1024 / count, 40, "kilobytes for each connection")
        finally:
            for stream in idle:
                stream.close()
        self.assertTrue(wait_until(lambda: gauge() < 1000, 20), gauge())

    def test_sessions_without_number(self):
        sessions = [self.server.client(era="session") for _ in range(1100)]
        listed = lambda client: client.post(client.message("tools/list")).status
        self.assertEqual((listed(sessions[0]), listed(sessions[-1])), (404, 200), "the oldest make room")
        self.assertLessEqual(len(list((self.home.path / "serve/sessions").iterdir())), 1000)

    def test_nobody_reads_the_answers(self):
        streams = [self.server.connect() for _ in range(20)]
        try:
            for stream in streams:
                stream.setblocking(False)
                try:
                    stream.send(request() * 2000)
                except BlockingIOError:
                    pass
            for _ in range(20):
                self.assertEqual(self.server.http("GET", "/version").status, 200)
                time.sleep(0.05)
            self.assertLess(self.server.rss() - self.before, 200)
        finally:
            for stream in streams:
                stream.close()

    @classmethod
    def tearDownClass(cls):
        # What began first ends last.
        received = cls.half_sent.join(SERVER_PATIENCE * 3)
        assert statuses(received) == [408], received
        closed = cls.waiting.join(SERVER_PATIENCE * 3)
        assert closed == cls.slow.count, f"{closed} of {cls.slow.count} slow connections were closed"


class SlowLoris:
    """Connections that send a byte now and then, so that none of them ever looks idle."""

    def __init__(self, server, count):
        self.server, self.count = server, count

    def go_on(self):
        """Until all are closed. How many were."""
        async def one():
            reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
            try:
                writer.write(b"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
                for _ in range(int(SERVER_PATIENCE * 2 * PATIENCE)):
                    writer.write(b"a")
                    await writer.drain()
                    try:
                        if not await asyncio.wait_for(reader.read(1000), 1):
                            return 1
                    except asyncio.TimeoutError:
                        continue
                return 0
            except ConnectionError:
                return 1
            finally:
                writer.close()

        async def all_of_them():
            return sum(await asyncio.gather(*(one() for _ in range(self.count))))
        return asyncio.run(all_of_them())


class Flood(HttpTestCase):
    arguments = ("--http-rate", "300", "--http-connections", "50")

    @classmethod
    def prepare(cls):
        cls.eve, cls.ann = cls.home.token("add", "eve"), cls.home.token("add", "ann")

    def test_a_connection_too_many_is_turned_away(self):
        held = [self.server.connect() for _ in range(60)]
        try:
            held[-1].settimeout(10)
            received = held[-1].recv(1000)
            self.assertTrue(received.startswith(b"HTTP/1.1 503 "), received)
            self.assertIn(b"retry-after", received.lower())
        finally:
            for stream in held:
                stream.close()

        def served():
            try:
                return self.server.http("GET", "/version").status == 200
            except OSError:
                return False
        self.assertTrue(wait_until(served, 10))

    def test_one_caller_floods_and_another_does_not_notice(self):
        batch, seconds = 50, 4
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta()}}
        auth = f"Authorization: Bearer {self.eve}\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/list\r\n"
        data = request(json.dumps(message).encode(), auth.encode()) * batch
        before, end = self.server.rss(), time.monotonic() + seconds

        def flood():
            counts = {}
            with self.server.connect() as stream, stream.makefile("rb") as answers:
                while time.monotonic() < end:
                    stream.sendall(data)
                    for _ in range(batch):
                        status, headers = int(answers.readline().split()[1]), {}
                        while line := answers.readline().strip().lower():
                            name, _, value = line.partition(b":")
                            headers[name] = value
                        answers.read(int(headers[b"content-length"]))
                        told = status != 429 or int(headers[b"retry-after"]) >= 1
                        counts[status, told] = counts.get((status, told), 0) + 1
            return counts

        floods = [Background(flood) for _ in range(4)]
        ann, served = self.server.client(self.ann), 0
        while time.monotonic() < end:
            self.assertEqual(len(ann.request("tools/list")["tools"]), 22)
            served += 1
            time.sleep(0.02)
        counts = {}
        for thread in floods:
            for key, count in thread.join().items():
                counts[key] = counts.get(key, 0) + count
        self.assertEqual(set(counts), {(200, True), (429, True)}, counts)
        print(f"\nflood: {sum(counts.values()) / seconds:.0f}/s, {counts[200, True]} answered, {counts[429, True]} refused; "
              f"the other caller: {served} answered", file=sys.stderr)
        self.assertLessEqual(counts[200, True], 300 * (seconds + 2 + 2 * PATIENCE))
        self.assertGreater(served, 5)
        self.assertLess(self.server.rss() - before, 200)
        self.assert_healthy()


if __name__ == "__main__":
    unittest.main()
