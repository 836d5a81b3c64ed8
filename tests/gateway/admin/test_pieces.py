"""Bodies in pieces, over a real socket."""

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
    async def make() -> web.Response:
        return web.Response(body=Pieces(at_once(in_pieces(LINES)), "text/x-lines"))

    server = PageServer({"/lines": shared(make)}, None, ("127.0.0.1", 0), tuple)
    await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            for _ in range(2):
                async with session.get("/lines") as response:
                    assert await response.read() == WHOLE
                    assert response.headers["Content-Length"] == str(len(WHOLE))
                    assert response.headers["Content-Type"] == "text/x-lines"
    finally:
        await server.stop()
