"""The methods of a session for its client's transport, and a protocol that passes them on."""

import asyncio
from typing import Protocol


class ClientProtocol(Protocol):
    """The methods of a session that its client's transport calls."""

    def data_received(self, data: bytes) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def eof_received(self) -> bool: ...

    def peer_closed(self) -> None: ...

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

    def eof_received(self) -> bool:
        return self._session.eof_received()

    def peer_closed(self) -> None:
        self._session.peer_closed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._session.connection_lost(exc)
