"""Bodies in pieces, over a real socket."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from gateway.admin.http import PageServer, shared
from gateway.admin.pieces import PIECE_BYTES, Pieces, in_pieces
from gateway.steps import at_once
from tests.gateway.admin.serving import served

LINES = [f"line {number}\n".encode() for number in range(100_000)]
WHOLE = b"".join(LINES)


@pytest.mark.parametrize("parts", [[], [b"", b"a"], LINES, [b"x" * (3 * PIECE_BYTES), b"y"]])
def test_pieces_are_the_parts_in_order(parts: list[bytes]) -> None:
    pieces = at_once(in_pieces(parts))
    assert b"".join(pieces) == b"".join(parts)
    assert max(map(len, pieces)) < PIECE_BYTES + max(map(len, [*parts, b"x"]))


async def test_page_in_pieces_arrives_whole_again_and_again() -> None:
    """Also if simultaneous requests share it, one of them leaves early, and another one asks for the headers only."""
    arrived = made = 0
    everyone_arrived = asyncio.Event()

    async def make() -> web.Response:
        nonlocal made
        made += 1
        await everyone_arrived.wait()
        return web.Response(body=Pieces(at_once(in_pieces(LINES)), "text/x-lines"))

    page = shared(make)

    async def lines(request: web.Request) -> web.StreamResponse:
        nonlocal arrived
        arrived += 1
        if arrived % 5 == 0:
            everyone_arrived.set()
        return await page(request)

    async with (
        served(PageServer({"/lines": lines}, None, ("127.0.0.1", 0), tuple)) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
    ):

        async def ask(method: str, length: int | None = None) -> bytes:
            async with session.request(method, "/lines") as response:
                assert response.headers["Content-Length"] == str(len(WHOLE))
                assert response.headers["Content-Type"] == "text/x-lines"
                return await (response.read() if length is None else response.content.readexactly(length))

        for number in (1, 2):
            everyone_arrived.clear()
            first = asyncio.create_task(ask("GET"))  # the others come later, so they share the run after this one's
            while made < 2 * number - 1:  # noqa: ASYNC110 -- the server tells nobody
                await asyncio.sleep(0)
            found = await asyncio.gather(first, ask("GET"), ask("GET", 100), ask("HEAD"), ask("GET"))
            assert found == [WHOLE, WHOLE, WHOLE[:100], b"", WHOLE]
            assert made == 2 * number
