"""The client's end of a TLS connection."""

import asyncio
from typing import Final, Protocol

BUFFER_BYTES: Final = 256 * 1024

_view: Final = memoryview(bytearray(BUFFER_BYTES))
"""Where clients' bytes are decrypted to, record by record, for all connections: what is read is copied before the next turn."""


class ClientProtocol(Protocol):
    """What a session is to its client's transport."""

    def data_received(self, data: bytes) -> None:
        """The client sends."""
        ...

    def pause_writing(self) -> None:
        """The client reads slower than the broker writes."""
        ...

    def resume_writing(self) -> None:
        """The client has caught up."""
        ...

    def eof_received(self) -> None:
        """The client has said goodbye."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        ...


class SecuredEnd:
    """An asyncio protocol with a buffer of its own, in front of a session that has none.

    Without it, each TLS record of up to 16 KiB would be given new memory, and all of them would be joined afterwards: a third
    more CPU for large requests. It doesn't inherit from asyncio's, for the reason that `session.io` gives.
    """

    def __init__(self, session: ClientProtocol) -> None:
        self._session = session

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The session was told when the handshake was done."""

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where to decrypt to."""
        return _view

    def buffer_updated(self, count: int) -> None:
        """The client has sent so many bytes."""
        self._session.data_received(bytes(_view[:count]))

    def pause_writing(self) -> None:
        """The client reads slower than the broker writes."""
        self._session.pause_writing()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._session.resume_writing()

    def eof_received(self) -> None:
        """The client has said goodbye."""
        self._session.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._session.connection_lost(exc)
