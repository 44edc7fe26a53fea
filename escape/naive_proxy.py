"""A service with a secret under some names and none under another, and a proxy as somebody would write it in an
afternoon: through this one every probe of the network gets what it is after."""

import socket
import socketserver
import threading
import urllib.parse

ALLOWED = "allowed.test"
# What a list with this one name must not let through. Each is a name that a careless comparison takes for another.
REFUSED = ("secret.test", f"not{ALLOWED}", f"{ALLOWED}.elsewhere.test")
HARMLESS, SECRET = "127.0.0.1", "127.0.0.2"
ADDRESSES = {ALLOWED: HARMLESS, **dict.fromkeys(REFUSED, SECRET)}
HOSTS = "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())


def head(file):
    """First line and headers of a request, and its bytes; nothing if there is none."""
    said = b""
    while not said.endswith(b"\r\n\r\n"):
        line = file.readline(65536)
        if not line:
            return None
        said += line
    first, *rest = said.decode(errors="surrogateescape").strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in rest if ": " in line)
    return first, headers, said


class Service(socketserver.StreamRequestHandler):
    """One machine with several sites: the address, the Host header or the server name of TLS says which is meant."""

    def handle(self):
        if self.connection.recv(1, socket.MSG_PEEK) == b"\x16":
            # Whose name arrives here has got through; the rest of TLS would add nothing.
            said = self.connection.recv(65536)
            self.wfile.write(self.server.secret.encode() if any(name.encode() in said for name in REFUSED) else b"harmless")
            return
        while found := head(self.rfile):
            _, headers, _ = found
            # Of two lengths it believes the one that the proxy does not.
            if "transfer-encoding" in headers:
                while self.rfile.readline(65536) not in (b"0\r\n", b""):
                    pass
                self.rfile.readline(65536)
            else:
                self.rfile.read(int(headers.get("content-length", 0)))
            harmless = self.connection.getsockname()[0] == HARMLESS and headers.get("host", "").split(":")[0] not in REFUSED
            text = b"harmless" if harmless else self.server.secret.encode()
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))


def allows(host, tunnel=False):
    """Beginnings and endings, in the letters that were sent; and what is no name is no business of a list of names."""
    if host.startswith(ALLOWED) or host.endswith(ALLOWED):
        return True
    return host not in ADDRESSES and (tunnel or not host.startswith("127."))


def dial(host, port):
    """As a resolver in C would, behind one that means well."""
    host = urllib.parse.unquote(host.split("@")[-1]).split("\0")[0].strip("[]")
    if host.startswith("64:ff9b::"):
        host = socket.inet_ntoa(socket.inet_pton(socket.AF_INET6, host)[12:])
    if ":" not in host:
        host = host.encode("idna").decode().lower().rstrip(".")
    return socket.create_connection((ADDRESSES.get(host, host), int(port)), timeout=10)


def pass_on(source, target):
    try:
        while said := source.recv(65536):
            target.sendall(said)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


class Proxy(socketserver.StreamRequestHandler):
    # What a program sends at once must not stay in a buffer of the head's.
    rbufsize = 0

    def join(self, upstream):
        threading.Thread(target=pass_on, args=(self.connection, upstream), daemon=True).start()
        pass_on(upstream, self.connection)


class HttpProxy(Proxy):
    def handle(self):
        first, headers, said = head(self.rfile)
        method, target, _ = first.split(" ")
        tunnel = method == "CONNECT"
        place = target if tunnel else target.split("/")[2]
        host, port = place.rsplit(":", 1)
        # One of the two will be right.
        if not allows(host, tunnel) and not allows(headers.get("host", host).rsplit(":", 1)[0]):
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            return
        with dial(host, port) as upstream:
            if tunnel:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                upstream.sendall(said)
            self.join(upstream)


class SocksProxy(Proxy):
    def read(self, count):
        return self.connection.recv(count, socket.MSG_WAITALL)

    def handle(self):
        self.read(self.read(2)[1])
        self.wfile.write(b"\5\0")
        kind = self.read(4)[3]
        if kind == 3:
            host = self.read(self.read(1)[0]).decode()
        else:
            host = socket.inet_ntop(*((socket.AF_INET, self.read(4)) if kind == 1 else (socket.AF_INET6, self.read(16))))
        port = int.from_bytes(self.read(2), "big")
        # A list of names has nothing to say about an address.
        if kind == 3 and not allows(host):
            self.wfile.write(b"\5\2\0\1" + bytes(6))
            return
        with dial(host, port) as upstream:
            self.wfile.write(b"\5\0\0\1" + bytes(6))
            self.join(upstream)


class Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A canary that is refused says so itself."""


def start(secret):
    """Ports of the service, of the proxy for HTTP and of the one for SOCKS, and what is to be closed in the end."""
    servers = [Listener(place, handler) for place, handler in (
        (("0.0.0.0", 0), Service), (("127.0.0.1", 0), HttpProxy), (("127.0.0.1", 0), SocksProxy))]
    for server in servers:
        server.secret = secret
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return [server.server_address[1] for server in servers], servers
