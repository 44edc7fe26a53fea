"""A small server made with fastmcp: over pipes, or over HTTP on the port that is its argument."""

import asyncio
import os
import subprocess
import sys

from fastmcp import Context, FastMCP

server = FastMCP("quick")


@server.tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool
def environment(name: str) -> str:
    """What a variable is set to, here."""
    return os.environ.get(name, "")


@server.tool
async def wait(seconds: float, context: Context) -> str:
    """Takes its time, and says how far it is."""
    for step in range(10):
        await context.report_progress(step, 10, f"step {step}")
        await asyncio.sleep(seconds / 10)
    return "done"


@server.tool
def have_children() -> str:
    """Starts a process that leaves its parent and its group, and one that stays."""
    subprocess.Popen(["setsid", "sleep", "1234567"])
    subprocess.Popen(["sleep", "1234567"])
    return str(os.getpid())


@server.resource("quick://motto")
def motto() -> str:
    """Its motto."""
    return "quick and plain"


@server.prompt
def greet(name: str) -> str:
    """Greets somebody."""
    return f"Say hello to {name}."


if len(sys.argv) > 1:
    server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), path="/mcp", show_banner=False)
else:
    server.run(show_banner=False)
