"""An MCP server by the official Python SDK whose only tool does nothing."""

try:
    from mcp.server.fastmcp import FastMCP as Server
except ImportError:  # version 2 of the SDK
    from mcp.server import MCPServer as Server

server = Server("empty")


@server.tool()
def nothing(code: str = "") -> str:
    return "2"


server.run()
