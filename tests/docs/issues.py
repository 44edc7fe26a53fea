"""As much of GitHub as a page needs: the issues of a repository."""

import http.server
import json

ISSUES = [{"number": 1, "title": "Crash at start", "state": "open", "html_url": "http://localhost/1"},
          {"number": 2, "title": "Too quiet", "state": "open", "html_url": "http://localhost/2"}]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(ISSUES).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = http.server.ThreadingHTTPServer(("localhost", 8001), Handler)
print("listening", flush=True)
server.serve_forever()
