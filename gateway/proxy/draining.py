"""How a gateway that ends takes leave of one client: nothing that was sent is lost without the client learning of it.

Requests that have begun are answered, and no other is begun. Then the client is told that nothing more will come (TCP's FIN, or
TLS's close_notify), and what it had sent meanwhile is still read: a socket that is closed with unread bytes is reset, and a
reset may overtake the last answers. Of what is read then, requests that want an answer are dropped, for their client sees a
closed connection instead and sends them again elsewhere; those that want none (acks=0) are forwarded.
"""

import asyncio
from typing import Final, Protocol

LINGER_SECONDS: Final = 2.0
"""For a client to close its side once it has been told."""


class DrainedSession(Protocol):
    """What is asked of the session that ends."""

    def part(self) -> bool:
        """Take leave of the client if all that was begun is answered."""
        ...

    def unread_client_bytes(self) -> int:
        """How many bytes the client has sent that nobody has read."""
        ...

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
        """The client has closed its side."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        ...


class Draining:
    """The protocol of a client's connection from the moment on that its session is to end; in place of `Session` itself, so
    that no other session has to look whether it does."""

    def __init__(self, session: DrainedSession, client: asyncio.Transport) -> None:
        self._session = session
        self._client = client
        self._timer: asyncio.TimerHandle | None = None
        self.parted = False

    def go_on(self) -> None:
        """Take leave, if it is time."""
        if self.parted or self._client.is_closing() or not self._session.part():
            return
        self.parted = True
        if self._client.can_write_eof():
            self._client.write_eof()
        elif not self._session.unread_client_bytes():
            self._client.close()  # which sends close_notify and waits for the client's
            return
        self._linger()

    def _linger(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._wait_no_more)

    def _wait_no_more(self) -> None:
        if self._client.get_write_buffer_size():  # its last answers are still on their way
            self._linger()
        else:
            self._client.close()

    # The client's connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The session was told."""

    def data_received(self, data: bytes) -> None:
        """The client sends."""
        self._session.data_received(data)
        if not self.parted:
            self.go_on()
        elif not self._client.can_write_eof() and not self._session.unread_client_bytes():
            self._client.close()

    def pause_writing(self) -> None:
        """The client reads slower than the broker writes."""
        self._session.pause_writing()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._session.resume_writing()

    def eof_received(self) -> None:
        """The client has closed its side: the transport closes ours. In the middle of a request it may, once it was told."""
        if not self.parted:
            self._session.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        if self._timer is not None:
            self._timer.cancel()
        self._session.connection_lost(exc)
