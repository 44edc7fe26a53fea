"""`belljar serve` through the current Python client, in both eras of the protocol, and through FastMCP."""

import contextlib
import unittest

import fastmcp
import mcp
from fastmcp.client.transports import StreamableHttpTransport
from harness import LEGACY, MODERN
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from scenarios import Scenarios, Tokens
from served import Client, ServeTestCase, plain


class Current(Client):
    mode = "auto"

    @contextlib.asynccontextmanager
    async def connect(self, url, headers):
        async with create_mcp_http_client(headers=headers) as http:
            async with mcp.Client(streamable_http_client(url, http_client=http), mode=self.mode) as client:
                self.version = client.protocol_version
                yield client

    async def tools(self):
        return [plain(tool) for tool in (await self.client.list_tools(cache_mode="refresh")).tools]

    async def call(self, tool, arguments, progress):
        return plain(await self.client.call_tool(tool, arguments, progress_callback=progress))

    async def resources(self):
        return [plain(resource) for resource in (await self.client.list_resources(cache_mode="refresh")).resources]

    async def read(self, uri):
        return [plain(part) for part in (await self.client.read_resource(uri, cache_mode="refresh")).contents]


class CurrentLegacy(Current):
    mode = "legacy"


class Fast(Client):
    @contextlib.asynccontextmanager
    async def connect(self, url, headers):
        async with fastmcp.Client(StreamableHttpTransport(url, headers=headers)) as client:
            self.version = client.protocol_version
            yield client

    async def tools(self):
        return [plain(tool) for tool in await self.client.list_tools()]

    async def call(self, tool, arguments, progress):
        return plain(await self.client.call_tool_mcp(tool, arguments, progress_handler=progress))

    async def resources(self):
        return [plain(resource) for resource in await self.client.list_resources()]

    async def read(self, uri):
        return [plain(part) for part in await self.client.read_resource(uri)]


class ModernClient(Scenarios, ServeTestCase):
    client_class = Current

    def test_the_newest_protocol_is_spoken(self):
        self.assertEqual(self.client.version, MODERN)


class LegacyClient(Scenarios, ServeTestCase):
    client_class = CurrentLegacy

    def test_the_older_protocol_is_spoken(self):
        self.assertEqual(self.client.version, LEGACY)


class FastClient(Scenarios, ServeTestCase):
    client_class = Fast


class ModernTokens(Tokens, ServeTestCase):
    client_class = Current


class LegacyTokens(Tokens, ServeTestCase):
    client_class = CurrentLegacy


class FastTokens(Tokens, ServeTestCase):
    client_class = Fast


if __name__ == "__main__":
    unittest.main()
