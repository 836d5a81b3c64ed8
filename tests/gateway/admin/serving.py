"""Running admin servers, with a client of theirs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import aiohttp

from gateway.admin.http import PageServer
from gateway.admin.server import AdminServer
from gateway.admin.view import AdminView

Server = TypeVar("Server", bound=PageServer)


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[Server]:
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def visiting(view: AdminView) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a server for `view`."""
    async with (
        served(AdminServer(view, ("127.0.0.1", 0))) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
    ):
        yield session
