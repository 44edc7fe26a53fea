"""`belljar serve` through the previous Python client, which most programs still use. It has the same package name as
the current one, so ../run.sh gives it an environment of its own."""

import asyncio
import contextlib
import unittest

from harness import LEGACY
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from scenarios import Scenarios, Tokens
from served import Client, ServeTestCase, plain


class Previous(Client):
    @contextlib.asynccontextmanager
    async def connect(self, url, headers):
        async with (
            create_mcp_http_client(headers=headers) as http,
            streamable_http_client(url, http_client=http) as (read, write, session_id),
            ClientSession(read, write) as session,
        ):
            self.version = (await session.initialize()).protocolVersion
            self.session_id = session_id
            yield session

    async def tools(self):
        return [plain(tool) for tool in (await self.client.list_tools()).tools]

    async def call(self, tool, arguments, progress):
        number = self.client._request_id  # what this call is about to get
        try:
            return plain(await self.client.call_tool(tool, arguments, progress_callback=progress))
        except asyncio.CancelledError:
            # This client leaves it to the program to tell the server.
            params = types.CancelledNotificationParams(requestId=number, reason="a test")
            notice = types.ClientNotification(types.CancelledNotification(params=params))
            await self.client.send_notification(notice)
            raise

    async def resources(self):
        return [plain(resource) for resource in (await self.client.list_resources()).resources]

    async def read(self, uri):
        return [plain(part) for part in (await self.client.read_resource(uri)).contents]


class PreviousClient(Scenarios, ServeTestCase):
    client_class = Previous
    notices_loss = False

    def test_the_older_protocol_is_spoken(self):
        self.assertEqual(self.client.version, LEGACY)

    def test_a_killed_server_comes_back_with_everything(self):
        before = self.client.session_id()
        super().test_a_killed_server_comes_back_with_everything()
        self.assertTrue(before)
        self.assertEqual(self.client.session_id(), before)


class PreviousTokens(Tokens, ServeTestCase):
    client_class = Previous


if __name__ == "__main__":
    unittest.main()
