import json, os, socket, sys


def look(path):
    return str(sorted(name for name in os.listdir(path) if path != "/volumes" or os.listdir(os.path.join(path, name))))


def connect(path):
    socket.create_connection((path, 80), 5)
    return "connected"


tools = {"look": look, "connect": connect, "environment": os.environ.get, "echo": str}
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method, answer = request["method"], {"jsonrpc": "2.0", "id": request["id"]}
    if method == "initialize":
        answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                            "serverInfo": {"name": "looking", "version": "1"}}
    elif method == "tools/list":
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        answer["result"] = {"tools": [{"name": name, "inputSchema": schema} for name in tools]}
    elif method == "tools/call":
        try:
            said = tools[request["params"]["name"]](request["params"]["arguments"]["path"])
        except OSError as error:
            said = f"{type(error).__name__}: {error}"
        answer["result"] = {"content": [{"type": "text", "text": str(said)}]}
    elif method == "ping":
        answer["result"] = {}
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
