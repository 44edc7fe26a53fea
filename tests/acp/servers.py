"""MCP servers as an editor hands them over."""

import subprocess
import sys

from acp import schema

from rig import HERE

PROGRAM = str(HERE / "tools_server.py")


def stdio(name, conduct="good"):
    return schema.McpServerStdio(name=name, command=sys.executable, args=[PROGRAM, "stdio", conduct], env=[])


class Http:
    """One on a free port of this machine."""

    def __init__(self, conduct="good"):
        self.process = subprocess.Popen([sys.executable, PROGRAM, "http", conduct], stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}/mcp"

    def server(self, name):
        return schema.HttpMcpServer(type="http", name=name, url=self.url, headers=[])

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
