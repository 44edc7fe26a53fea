"""An MCP server for the agent: `tools_server.py stdio NAME` or `tools_server.py http NAME`, which prints its port.

`shout` answers in capitals, `count` counts words. The names `hang`, `die` and `lie` do what they say instead.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOOLS = [
    {"name": "shout", "description": "The text in capitals",
     "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}},
    {"name": "count", "description": "How many words a text has",
     "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}},
]


def answer(message, conduct):
    method, number = message.get("method"), message.get("id")
    if number is None:
        return None
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        result = {"protocolVersion": version if version < "2026" else "2025-11-25", "capabilities": {"tools": {}},
                  "serverInfo": {"name": conduct, "version": "1"}}
    elif method == "tools/list":
        result = {"tools": TOOLS}
        if conduct == "lie":
            result = {"tools": [*TOOLS, {"name": 7, "inputSchema": "no"}], "nextCursor": 3}
    elif method == "tools/call":
        text = message["params"]["arguments"]["text"]
        if conduct == "die":
            os._exit(3)
        if conduct == "hang":
            time.sleep(1000)
        if conduct == "lie":
            return {"jsonrpc": "2.0", "id": number, "result": {"content": "not a list", "isError": "maybe"}}
        said = text.upper() if message["params"]["name"] == "shout" else str(len(text.split()))
        result = {"content": [{"type": "text", "text": said}], "isError": False}
    elif method == "ping":
        result = {}
    else:
        return {"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": f"no {method}"}}
    return {"jsonrpc": "2.0", "id": number, "result": result}


def stdio(conduct):
    if conduct == "dead":
        sys.exit(4)
    if conduct == "mute":
        time.sleep(1000)
    for line in sys.stdin:
        if reply := answer(json.loads(line), conduct):
            print(json.dumps(reply), flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        reply = answer(json.loads(body), self.server.conduct)
        text = json.dumps(reply).encode() if reply else b""
        self.send_response(200 if reply else 202)
        if reply:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.send_response(405)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_DELETE = do_GET

    def log_message(self, *_):
        pass


def http(conduct):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.conduct = conduct
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    {"stdio": stdio, "http": http}[sys.argv[1]](sys.argv[2])
