"""What sandboxes talk to in these tests: servers on this machine, under a name that is not loopback's own."""

import http.server
import os
import re
import socket
import ssl
import subprocess
import threading
import urllib.parse
import urllib.request
from pathlib import Path

SYSTEM_BUNDLE = Path(os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt")


def own_name():
    """A name and address of this machine that programs do not take for their own loopback."""
    for name in (socket.gethostname(), socket.getfqdn(), "ip6-localhost", "ip6-loopback"):
        try:
            for family, _, _, _, (address, *_) in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
                if name.lower() != "localhost" and re.fullmatch(r"[A-Za-z0-9.-]*[A-Za-z][A-Za-z0-9.-]*", name):
                    with socket.socket(family) as probe:
                        probe.bind((address, 0))
                    return name.lower(), family, address
        except OSError:
            continue
    raise RuntimeError("this machine has no name of its own: add one to /etc/hosts")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of a directory; `/echo` tells what was sent; `/away` leads elsewhere."""

    def do_GET(self):
        self.server.heard.append((self.command, self.path, dict(self.headers)))
        if self.path.startswith("/away"):
            self.send_response(302)
            self.send_header("Location", "http://elsewhere.example/")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path.startswith("/echo"):
            text = f"{self.command} {self.path}\n{self.headers}".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("X-Sent", self.headers.get("Authorization", "nothing"))
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        else:
            super().do_GET()

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.path = "/echo"
        self.do_GET()

    def log_message(self, *_):
        pass


class Outside:
    """An HTTP and an HTTPS server over one directory."""

    def __init__(self, directory):
        self.directory = Path(directory)
        (self.directory / "www").mkdir()
        (self.directory / "www" / "index.html").write_text("<title>Outside</title><h1>Hello from outside</h1>")
        self.name, family, address = own_name()
        self.bundle = self._certificate()
        self.plain = self._serve(family, address)
        self.secure = self._serve(family, address, self.directory / "server.pem")
        self.http, self.https = (server.server_address[1] for server in (self.plain, self.secure))

    def _certificate(self):
        """An authority and a server of its, and a file that trusts it beside all that the machine trusts."""
        at = self.directory
        run = lambda *words: subprocess.run(["openssl", *words], check=True, cwd=at, capture_output=True)
        run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=Test authority", "-keyout", "ca.key",
            "-out", "ca.pem", "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        run("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-keyout", "server.key", "-out", "server.csr")
        (at / "names").write_text(f"subjectAltName=DNS:{self.name}\nextendedKeyUsage=serverAuth\n")
        run("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "names", "-out", "server.crt")
        (at / "server.pem").write_text((at / "server.key").read_text() + (at / "server.crt").read_text())
        system = SYSTEM_BUNDLE.read_text() if SYSTEM_BUNDLE.exists() else ""
        (at / "bundle.pem").write_text(system + "\n" + (at / "ca.pem").read_text())
        return str(at / "bundle.pem")

    def _serve(self, family, address, certificate=None):
        kind = type("Server", (http.server.ThreadingHTTPServer,), {"address_family": family, "daemon_threads": True})
        root = str(self.directory / "www")
        server = kind((address, 0), lambda *words: Handler(*words, directory=root))
        server.heard = []
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # Handshakes belong to the threads of their connections.
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def close(self):
        for server in (self.plain, self.secure):
            server.shutdown()
            server.server_close()


def asked(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def page(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode(errors="replace")


def place(url):
    parts = urllib.parse.urlsplit(url)
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def python_registry():
    """Address of the index that pip is configured for, and the places that its files come from. None if out of reach."""
    index = os.environ.get("PIP_INDEX_URL") or asked("pip", "config", "get", "global.index-url") or asked(
        "pip", "config", "get", "user.index-url") or asked(
        "python3", "-c", "from pip._internal.models.index import PyPI; print(PyPI.simple_url)")
    start = f"{index.rstrip('/')}/iniconfig/"
    try:
        links = re.findall(r'href="([^"#]+)', page(start))
    except OSError:
        return None
    return index, {place(start)} | {place(urllib.parse.urljoin(start, link)) for link in links}


def node_registry():
    """The same for npm."""
    registry = asked("npm", "config", "get", "registry")
    try:
        found = page(f"{registry.rstrip('/')}/is-number")
    except OSError:
        return None
    return registry, {place(registry)} | {place(url) for url in re.findall(r'"tarball":\s*"([^"]+)"', found)}
