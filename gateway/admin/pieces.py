"""Large bodies, made and sent in pieces: the event loop serves clients in between. Thousands of rows make a page of a MiB."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from gateway.steps import Steps

PIECE_BYTES: Final = 32 * 1024
"""The size of a piece, apart from its last part."""


class Pieces(Payload):
    """A body of several pieces. It may be sent more than once."""

    def __init__(self, pieces: Sequence[bytes], content_type: str) -> None:
        super().__init__(pieces, content_type=content_type)
        self._pieces = pieces
        self._size = sum(map(len, pieces))

    async def write(self, writer: AbstractStreamWriter) -> None:
        for piece in self._pieces:
            await writer.write(piece)
            await asyncio.sleep(0)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._pieces).decode(encoding, errors)


def in_pieces(parts: Iterable[bytes]) -> Steps[list[bytes]]:
    pieces: list[bytes] = []
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            pieces.append(b"".join(waiting))
            waiting, size = [], 0
            yield
    return [*pieces, b"".join(waiting)]
