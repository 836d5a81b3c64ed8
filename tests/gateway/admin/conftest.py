"""A running admin server."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from gateway.admin.server import AdminServer
from gateway.admin.view import AdminView
from tests.gateway.admin.serving import served


@pytest.fixture
async def server(view: AdminView) -> AsyncIterator[AdminServer]:
    async with served(AdminServer(view, ("127.0.0.1", 0))) as running:
        yield running


@pytest.fixture
async def client(server: AdminServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        yield session
