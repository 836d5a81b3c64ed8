"""Protocols between a client's transport and its session. Compiled, because they handle every TLS record."""

import asyncio
from typing import Final, Protocol

BUFFER_BYTES: Final = 256 * 1024

_buffer: Final = memoryview(bytearray(BUFFER_BYTES))
"""uvloop decrypts the records of all connections into this buffer. `buffer_updated` copies the bytes before the next read."""


class ClientProtocol(Protocol):
    """The methods of a session that its client's transport calls."""

    def data_received(self, data: bytes) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def eof_received(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


class SessionFront:
    """The methods of an asyncio buffered protocol that the session behind it answers."""

    def __init__(self, session: ClientProtocol) -> None:
        self._session = session

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Does nothing: the session has the transport already."""

    def pause_writing(self) -> None:
        self._session.pause_writing()

    def resume_writing(self) -> None:
        self._session.resume_writing()

    def eof_received(self) -> None:
        self._session.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._session.connection_lost(exc)


class BufferedTlsProtocol(SessionFront):
    """An asyncio buffered protocol in front of a session.

    With a plain protocol, uvloop allocates memory for each TLS record of up to 16 KiB and joins the records afterwards. Large
    requests then cost a third more CPU.
    """

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return _buffer

    def buffer_updated(self, count: int) -> None:
        self._session.data_received(bytes(_buffer[:count]))
