"""Belljar through the official Python SDK, as most programs have it. Orders and answers are lines of JSON.

    python sdk_peer.py COMMAND...
"""

import asyncio
import json
import os
import sys
import time

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


def structured(answer):
    # Version 2 of the SDK names things as Python does.
    return getattr(answer, "structuredContent", None) or answer.structured_content


async def main():
    command, *arguments = sys.argv[1:]
    server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        made = await session.call_tool("create_context", {"name": "sdk"})
        context = structured(made)["context_id"]
        print(json.dumps({}), flush=True)
        while line := await orders.readline():
            order = json.loads(line)
            times, client = [], []
            for _ in range(order["count"]):
                began, own = time.perf_counter(), time.process_time()
                answer = await session.call_tool("run_code", {"context_id": context, "code": order["code"]})
                times.append(time.perf_counter() - began)
                client.append(time.process_time() - own)
                said = json.dumps(structured(answer), separators=(",", ":"))
                if order["expect"] not in said:
                    sys.exit(f"this answer does not contain {order['expect']}: {said[:600]}")
            print(json.dumps({"times": times, "client": client, "length": len(said)}), flush=True)


asyncio.run(main())
