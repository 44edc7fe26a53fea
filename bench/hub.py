#!/usr/bin/env python3
"""What a call costs more through the hub: the same tool of the same kind of server, called directly and through
`belljar mcp --hub`, one after the other, so that both meet the same machine.

    make bench-hub            or            python3 bench/hub.py [--calls N] [--json]

The server is a few lines of Python that answer at once: whatever is measured is the way, not the work.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BELLJAR = os.environ.get("BELLJAR") or ROOT / "target/release/belljar"
BUDGET_MS = 0.5

SERVER = r"""
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method, answer = request["method"], {"jsonrpc": "2.0", "id": request["id"]}
    if method == "initialize":
        answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                            "serverInfo": {"name": "echo", "version": "1"}}
    elif method == "tools/list":
        answer["result"] = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        answer["result"] = {"content": [{"type": "text", "text": json.dumps(request["params"]["arguments"])}]}
    elif method == "ping":
        answer["result"] = {}
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
"""


class Client:
    """Speaks the older era over pipes, with as little as possible in between."""

    def __init__(self, command, **options):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
        self.number = 0
        self.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {},
                                    "clientInfo": {"name": "bench", "version": "1"}})
        self.send({"method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def request(self, method, params):
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        while True:
            line = self.process.stdout.readline()
            if not line:
                sys.exit("the server closed its output")
            answer = json.loads(line)
            if answer.get("id") == self.number:
                if "result" not in answer:
                    sys.exit(f"{method} failed: {answer}")
                return answer["result"]

    def call(self, tool):
        began = time.perf_counter()
        result = self.request("tools/call", {"name": tool, "arguments": {"text": "x" * 100}})
        took = time.perf_counter() - began
        assert not result.get("isError"), result
        return took * 1000

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "hub.json")
        server = [sys.executable, "-c", SERVER]
        config.write_text(json.dumps({"mcpServers": {"echo": {"command": server[0], "args": server[1:]}}}))
        direct = Client(server)
        hub = Client([str(BELLJAR), "mcp", "--toolsets", "hub", "--hub", str(config)], stderr=subprocess.DEVNULL)
        for _ in range(50):
            direct.call("echo"), hub.call("echo__echo")
        pairs = [(direct.call("echo"), hub.call("echo__echo")) for _ in range(arguments.calls)]
        direct.close(), hub.close()
    directly, through = (sorted(times) for times in zip(*pairs))
    extra = statistics.median(through) - statistics.median(directly)
    figures = {
        "calls": arguments.calls,
        "direct_ms": {"median": statistics.median(directly), "p99": directly[int(len(directly) * 0.99)]},
        "hub_ms": {"median": statistics.median(through), "p99": through[int(len(through) * 0.99)]},
        "extra_ms": extra,
        "budget_ms": BUDGET_MS,
    }
    if arguments.json:
        json.dump(figures, sys.stdout, indent=2)
        print()
    else:
        print(f"{'':10} {'median':>10} {'p99':>10}")
        for name in ("direct", "hub"):
            times = figures[f"{name}_ms"]
            print(f"{name:10} {times['median']:7.3f} ms {times['p99']:7.3f} ms")
        print(f"through the hub a call takes {extra:.3f} ms more at the median; the budget is {BUDGET_MS} ms")
    return 0 if extra <= BUDGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())
