"""Bodies in pieces, over a real socket."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from gateway.admin.http import PageServer, shared
from gateway.admin.pieces import PIECE_BYTES, Pieces, in_pieces
from gateway.steps import at_once

LINES = [f"line {number}\n".encode() for number in range(100_000)]
WHOLE = b"".join(LINES)


@pytest.mark.parametrize("parts", [[], [b"", b"a"], LINES, [b"x" * (3 * PIECE_BYTES), b"y"]])
def test_pieces_are_the_parts_in_order(parts: list[bytes]) -> None:
    pieces = at_once(in_pieces(parts))
    assert b"".join(pieces) == b"".join(parts)
    assert max(map(len, pieces)) < PIECE_BYTES + max(map(len, [*parts, b"x"]))


async def test_page_in_pieces_arrives_whole_again_and_again() -> None:
    """Also if simultaneous requests share it, one of them leaves early, and another one asks for the headers only."""
    made = 0

    async def make() -> web.Response:
        nonlocal made
        made += 1
        await asyncio.sleep(0.1)
        return web.Response(body=Pieces(at_once(in_pieces(LINES)), "text/x-lines"))

    server = PageServer({"/lines": shared(make)}, None, ("127.0.0.1", 0), tuple)
    await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:

            async def ask(method: str, length: int | None = None) -> bytes:
                async with session.request(method, "/lines") as response:
                    assert response.headers["Content-Length"] == str(len(WHOLE))
                    assert response.headers["Content-Type"] == "text/x-lines"
                    return await (response.read() if length is None else response.content.readexactly(length))

            for number in (1, 2):
                found = await asyncio.gather(ask("GET"), ask("GET", 100), ask("HEAD"), ask("GET"))
                assert found == [WHOLE, WHOLE[:100], b"", WHOLE]
                assert made == number
    finally:
        await server.stop()
