#!/usr/bin/env python3
"""What `belljar acp` adds to a model's own time: `make bench-acp`, or `make bench-acp BENCH_ACP="--rounds 10"`.

Speaks ACP over pipes itself and plays the model, which answers at once, so that little but the agent is measured: the
time from a prompt to the first forwarded word, less what the model took. The budgets are for the medians, on a quiet
machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BELLJAR = os.path.abspath(os.environ.get("BELLJAR") or ROOT / "target/release/belljar")
BUDGETS = {"start to initialize": 50, "prompt to first word, first prompt": None, "prompt to first word": 5}


class Model(ThreadingHTTPServer):
    """Answers one word, in OpenAI's format, and remembers how long it took."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.took = 0.0
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Every event is a packet of its own, at once.
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self):
        arrived = time.perf_counter()
        self.rfile.read(int(self.headers["Content-Length"]))
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "bench",
                 "choices": [{"index": 0, "delta": {"content": "word"}, "finish_reason": None}]}
        end = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        events = [f"data: {json.dumps(event)}\n\n".encode() for event in (chunk, end)] + [b"data: [DONE]\n\n"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(sum(map(len, events))))
        self.end_headers()
        for number, event in enumerate(events):
            self.wfile.write(event)
            self.wfile.flush()
            if number == 0:
                self.server.took = time.perf_counter() - arrived

    def log_message(self, *_):
        pass


class Agent:
    def __init__(self, home, model):
        env = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}
        env.update(BELLJAR_HOME=home, BELLJAR_LLM_PROVIDER="openai", BELLJAR_MODEL="gpt-4o", OPENAI_API_KEY="bench",
                   BELLJAR_LLM_BASE_URL=f"http://127.0.0.1:{model.server_port}/v1/", BELLJAR_POOL_SIZE="1",
                   BELLJAR_POOL_LANGUAGES="python")
        self.model, self.number = model, 0
        self.began = time.perf_counter()
        self.process = subprocess.Popen([BELLJAR, "acp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, env=env)
        self.request("initialize", protocolVersion=1, clientCapabilities={})
        self.started = time.perf_counter() - self.began

    def send(self, method, params):
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return self.number

    def receive(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the agent ended: run `{BELLJAR} acp` by hand")
        return json.loads(line)

    def request(self, method, **params):
        number = self.send(method, params)
        while (message := self.receive()).get("id") != number:
            pass
        if "error" in message:
            sys.exit(f"the agent refused {method}: {message['error']}")
        return message["result"]

    def prompt(self, session):
        """Seconds from the prompt to the first word, over the model's own."""
        began = time.perf_counter()
        number = self.send("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "go"}]})
        first = None
        while (message := self.receive()).get("id") != number:
            update = message.get("params", {}).get("update", {})
            if first is None and update.get("sessionUpdate") == "agent_message_chunk":
                first = time.perf_counter() - began
        if "error" in message or first is None:
            sys.exit(f"the prompt failed: {message}")
        return first - self.model.took

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def measure(rounds, prompts):
    figures = {name: [] for name in BUDGETS}
    model = Model()
    templates = Path(os.environ.get("BELLJAR_HOME") or os.path.join(
        os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "belljar"), "templates")
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as project:
        os.symlink(templates.resolve(), Path(directory, "templates"))
        for _ in range(rounds):
            agent = Agent(directory, model)
            figures["start to initialize"].append(agent.started)
            session = agent.request("session/new", cwd=project, mcpServers=[])["sessionId"]
            times = [agent.prompt(session) for _ in range(prompts)]
            figures["prompt to first word, first prompt"].append(times[0])
            figures["prompt to first word"].extend(times[1:])
            agent.close()
    model.shutdown()
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="agents that are started")
    parser.add_argument("--prompts", type=int, default=20, help="prompts to each")
    arguments = parser.parse_args()
    print("| what `belljar acp` takes | median, ms | best, ms | budget, ms |")
    print("|---|---|---|---|")
    for name, seconds in measure(arguments.rounds, arguments.prompts).items():
        budget = BUDGETS[name]
        median, best = statistics.median(seconds) * 1000, min(seconds) * 1000
        print(f"| {name} | {median:.2f} | {best:.2f} | {budget if budget is not None else '–'} |")


if __name__ == "__main__":
    main()
