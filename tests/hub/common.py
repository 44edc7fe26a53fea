"""What the tests of the hub share. The ways to talk to a server are those of the client tests."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients/python"))

from harness import BELLJAR, PATIENCE, Kept, Raw, environment, home, processes, wait_until  # noqa: E402, F401

HERE = Path(__file__).resolve().parent
SERVERS = Path(os.environ["HUB_SERVERS"])
NODE = os.environ.get("BELLJAR_NODE") or "node"
# Servers take their time to start on a busy machine, and a list shall have all of them.
PATIENT = {"patience": 300, "connect": 300, "probe": 100}


def everything(*arguments):
    return [NODE, str(SERVERS / "server-everything/dist/index.js"), *arguments]


def filesystem(*directories):
    return [NODE, str(SERVERS / "server-filesystem/dist/index.js"), *map(str, directories)]


def quick(*arguments):
    return [sys.executable, str(HERE / "quick_server.py"), *map(str, arguments)]


def stdio(command, **more):
    return {"command": command[0], "args": command[1:], **more}


@contextlib.contextmanager
def hub_file(servers, timing=PATIENT):
    with tempfile.NamedTemporaryFile("w", prefix="belljar-hub-", suffix=".json") as file:
        json.dump({"mcpServers": servers, "timing": timing}, file)
        file.flush()
        yield file.name


def hub(test, servers, *arguments, toolsets="hub", timing=PATIENT, **options):
    """A server on pipes with these behind it, for one test or one class of tests."""
    add = test.addClassCleanup if isinstance(test, type) else test.addCleanup
    file = hub_file(servers, timing)
    name = file.__enter__()
    add(file.__exit__, None, None, None)
    server = Raw("--hub", name, *arguments, toolsets=toolsets, **options)
    add(server.close)
    return server


class Client(Kept):
    """The current Python client, in front of a hub."""

    def __init__(self, mode, file, **settings):
        import mcp
        from mcp.client.stdio import StdioServerParameters, stdio_client

        self.log = tempfile.TemporaryFile("w+", prefix="belljar-stderr-")
        parameters = StdioServerParameters(
            command=BELLJAR, args=["mcp", "--toolsets", "hub", "--hub", file], env=environment(**settings))
        self.keep(mcp.Client(stdio_client(parameters, errlog=self.log), mode=mode))

    def stderr(self):
        self.log.flush()
        return Path(f"/proc/self/fd/{self.log.fileno()}").read_text(errors="replace")

    def close(self):
        super().close()
        self.log.close()


def call(server, tool, /, **arguments):
    return server.request("tools/call", {"name": tool, "arguments": arguments})


def text(result):
    return "".join(block.get("text", "") for block in result["content"])


def names(server):
    return [tool["name"] for tool in server.request("tools/list")["tools"]]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def serve(test, command, port, path="/mcp", **environment_of_it):
    """A server over HTTP that is there for the test; returns its address."""
    log = tempfile.TemporaryFile(prefix="belljar-upstream-")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                               env={**os.environ, **environment_of_it})
    add = test.addClassCleanup if isinstance(test, type) else test.addCleanup
    add(log.close), add(process.wait), add(process.kill)

    def answers():
        if process.poll() is not None:
            log.seek(0)
            raise RuntimeError(f"{command} ended: {log.read().decode(errors='replace')}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True

    assert wait_until(answers, 60 * PATIENCE), f"{command} does not listen"
    return f"http://127.0.0.1:{port}{path}"


def marked(mark):
    """Processes with this text in their environment."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in Path(entry.path, "environ").read_bytes():
                    found[int(entry.name)] = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found
