"""Connections to the admin server that ask for nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from gateway.admin.idle_connections import IDLE_SECONDS, IdleConnections, most_idle

LONG = 64 * 1024 * 1024
"""More bytes than the sockets of both sides hold."""
LATER = 1e9
"""Long after any clock of a test."""


class Server:
    """An HTTP server with a page that waits for `open`."""

    def __init__(self) -> None:
        self.idle = IdleConnections()
        self.asked, self.open = asyncio.Event(), asyncio.Event()
        self._clients: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        app = web.Application(middlewares=[self.idle.middleware])
        app.router.add_get("/", self._page)
        app.router.add_get("/at-once", self._page_at_once)
        app.router.add_get("/long", self._long_page)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        assert self._runner.server is not None
        self.idle.started(self._runner.server)
        self._port = int(self._runner.addresses[0][1])

    async def _page(self, _: web.Request) -> web.Response:
        self.asked.set()
        await self.open.wait()
        return web.Response(text="page")

    async def _page_at_once(self, _: web.Request) -> web.Response:
        return web.Response(text="page")

    async def _long_page(self, _: web.Request) -> web.Response:
        return web.Response(text="x" * LONG)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._clients.append(writer)
        return reader, writer

    async def arrived(self) -> None:
        """Wait until the server has accepted all connections so far: it accepts them in their order."""
        reader, writer = await self.connect()
        writer.write(b"GET /at-once HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"page")

    async def stop(self) -> None:
        self.open.set()
        for writer in self._clients:
            writer.close()
        self.idle.stop()
        await self._runner.cleanup()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.start()
    yield server
    await server.stop()


async def test_silent_connection_is_closed(server: Server) -> None:
    reader, _ = await server.connect()
    await server.arrived()
    server.idle.close_idle(LATER)
    server.idle.close_idle(LATER + IDLE_SECONDS - 1)
    assert not reader.at_eof()
    server.idle.close_idle(LATER + IDLE_SECONDS)
    assert await reader.read() == b""


async def test_connection_that_waits_for_its_answer_stays(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    await server.asked.wait()
    server.idle.close_idle(LATER)
    server.idle.close_idle(LATER + IDLE_SECONDS)
    server.open.set()
    assert (await reader.read()).endswith(b"page")


async def test_longest_idle_connections_go_beyond_maximum(server: Server) -> None:
    first, _ = await server.connect()
    await server.arrived()
    server.idle.close_idle(LATER)
    others = [await server.connect() for _ in range(most_idle())]
    await server.arrived()
    server.idle.close_idle(LATER + 1)
    assert await first.read() == b""
    assert not any(reader.at_eof() for reader, _ in others)


async def test_client_that_does_not_read_its_answer_is_cut_off(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    server.idle.close_idle(LATER)
    server.idle.close_idle(LATER + IDLE_SECONDS)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await reader.readexactly(LONG)
