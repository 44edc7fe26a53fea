"""in_context.py LANGUAGE FILE: runs a file as an agent would, in a context of the page's server."""

import json
import sys
import urllib.request
from pathlib import Path


def call(tool, **arguments):
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    request = urllib.request.Request("http://localhost:8775/mcp", json.dumps(message).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["result"]["structuredContent"]


context = call("create_context", name="page", language=sys.argv[1])["context_id"]
done = call("run_code", context_id=context, code=Path(sys.argv[2]).read_text())
print(done["stdout"] + done.get("result", ""))
call("stop_context", context_id=context)
sys.exit(0 if done["success"] else done["stderr"])
