"""Runs inside a sandbox: the pages of the workspace, and paths that no well-behaved server has. `port` is where."""

import http.server
import threading
import time


class Wild(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/picture":
            self.begin("image/png")
            self.wfile.write(b"\x89PNG")
            self.wfile.flush()
            self.rfile.read(1)  # until the browser has gone
        elif self.path == "/stream":
            self.begin("text/html")
            self.wfile.write(b"<title>stream</title><p>words that came</p><button>There</button>")
            self.stream()
        else:
            super().do_GET()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.begin("text/plain")
        self.wfile.write(b"got " + body)

    def begin(self, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def stream(self):
        """Until the browser has gone."""
        try:
            while True:
                self.wfile.write(b"<p>more</p>")
                self.wfile.flush()
                time.sleep(0.2)
        except OSError:
            self.close_connection = True

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Wild)
threading.Thread(target=server.serve_forever, daemon=True).start()
port = server.server_port
