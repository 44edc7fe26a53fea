"""A server without any library. Its tool `grow` gives it one more tool, and says so."""

import json
import sys

tools = ["grow"]


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method, number = request["method"], request["id"]
    if method == "initialize":
        send({"id": number, "result": {
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "changing", "version": "1"}}})
    elif method == "tools/list":
        send({"id": number, "result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}})
    elif method == "tools/call":
        tools.append(f"grown{len(tools)}")
        send({"id": number, "result": {"content": [{"type": "text", "text": tools[-1]}]}})
        send({"method": "notifications/tools/list_changed"})
    elif method == "ping":
        send({"id": number, "result": {}})
    else:
        send({"id": number, "error": {"code": -32601, "message": "no such method"}})
