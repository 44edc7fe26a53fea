"""A server that sandboxes may reach and that does not deserve it, and a sandbox that tries."""

import collections
import json
import socket
import struct
import threading
import time
from pathlib import Path

from doors import DOWN, Failed, Refused
from model import Violation

# What code in the sandbox has: one way to ask and one to begin something and look at it later. Both give up on their own.
INSIDE = """
import http.client, json, threading
def ask(how, port, path, timeout, limit=1 << 20):
    try:
        outside = http.client.HTTPConnection('127.0.0.1', 3128, timeout=timeout)
        if how == 'tunnel':
            outside.set_tunnel('localhost', port)
        outside.request('GET', path if how == 'tunnel' else f'http://localhost:{port}{path}', headers={'Host': f'localhost:{port}'})
        answer = outside.getresponse()
        body = answer.read(limit)
        whole = len(body) == limit or answer.isclosed()
        return [answer.status, body[:60].decode('latin-1'), whole]
    except Exception as error:
        return ['error', f'{type(error).__name__}: {error}'[:300], False]
    finally:
        outside.close()
asked = []
def begin(how, port, path, timeout):
    def run():
        asked.append(ask(how, port, path, timeout, 1 << 40))
    threading.Thread(target=run, daemon=True).start()
"""


def sockets(table, port):
    """Those at this port in the kernel's list, as local, remote, state and inode; 0 is one that no process has."""
    lines = [line.split() for line in table.splitlines()[1:]]
    return [" ".join([*f[1:4], f[9]]) for f in lines if f"{port:04X}" in (f[1][-4:], f[2][-4:])]


def is_held(line, port):
    """Whether a line of the kernel's list is a socket at this port that some process still has."""
    fields = line.split()
    return fields[1].endswith(port) and fields[9] != "0"


class Outside:
    """What it does depends on the path. It knows who is still connected."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        # Nobody listens here, for as long as nobody else takes it.
        with socket.create_server(("127.0.0.1", 0)) as closed:
            self.closed = closed.getsockname()[1]
        self.connected, self.lock, self.asked = set(), threading.Lock(), collections.deque(maxlen=5)
        self.listening = threading.Thread(target=self._listen, daemon=True)
        self.listening.start()

    def _listen(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                self.connected.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        try:
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(4096)
                if not piece:
                    return
                head += piece
            path = head.split(b" ")[1].decode()
            self.asked.append((connection.getpeername()[1], path))
            getattr(self, "do_" + path.strip("/"))(connection)
        except OSError:
            pass
        finally:
            with self.lock:
                self.connected.discard(connection)
            connection.close()

    def do_fine(self, connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine")

    def do_hang(self, connection):
        while connection.recv(4096):
            pass
        # It does not take a half-closed connection for a farewell.
        port = f":{connection.getpeername()[1]:04X}"
        while any(is_held(line, port) for line in Path("/proc/net/tcp").read_text().splitlines()[1:]):
            time.sleep(0.05)

    def do_reset(self, connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def do_cut(self, connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nfine so far")

    def do_garbage(self, connection):
        connection.sendall(bytes(range(256)) * 20)

    def do_endless(self, connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            time.sleep(0.005)

    def sockets(self):
        return sockets(Path("/proc/net/tcp").read_text(), self.port)

    def count(self):
        with self.lock:
            return len(self.connected)

    def close(self):
        # Closed alone, it would be accepted from on and on, and later what then has the same number.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listening.join()
        self.listener.close()
        with self.lock:
            for connection in self.connected:
                connection.shutdown(socket.SHUT_RDWR)


# What came of what was begun inside, and where that is now.
WHERE = """
import sys, traceback
frames = sys._current_frames()
for one in threading.enumerate():
    print(one.name, *traceback.format_stack(frames[one.ident])[-3:] if one.ident in frames else ["ended"])
print(json.dumps(asked), open("/proc/net/tcp").read())
"""


class Insider:
    """One sandbox with a network."""

    def __init__(self, world, network):
        self.world, self.client = world, world.client
        self.id = self.client.call("sandbox_create", network=network)["sandbox_id"]
        self.run(INSIDE)

    def run(self, code):
        ran = self.client.call("code_run", sandbox_id=self.id, language="python", code=code, timeout=60)
        if not ran.get("success"):
            raise Violation(f"code that only asks fails: {ran}")
        return ran["stdout"]

    def ask(self, path, how="plain", port=None, timeout=20):
        """Status or 'error', the beginning of the answer, whether that was all."""
        port = port or self.world.outside.port
        told = json.loads(self.run(f"print(json.dumps(ask({how!r}, {port}, {path!r}, {timeout})))"))
        if len(told[1]) > 400:
            raise Violation(f"{path}: a long story: {told}")
        return told

    def begin(self, path, how="plain"):
        self.run(f"begin({how!r}, {self.world.outside.port}, {path!r}, 300)")

    def finished(self):
        """What came of what was begun."""
        return json.loads(self.run("print(json.dumps(asked))"))

    def works(self, how="plain"):
        try:
            self.last = self.ask("/fine", how)
        except (Refused, Failed, Violation, KeyError, ValueError, *DOWN) as error:
            self.last = error
        return self.last == [200, "fine", True]

    def network(self, network, **more):
        return self.client.call("sandbox_network", sandbox_id=self.id, network=network, **more)

    def end(self):
        self.client.call("sandbox_destroy", sandbox_id=self.id)
        self.world.stopped.add(self.id)
