"""The end of one client's connection when its gateway ends: no request is lost without the client learning of it.

Requests that have begun are answered, and no other is taken. Then the gateway half-closes the connection (TCP's FIN, or TLS's
close_notify), and still reads it. The kernel resets a socket that is closed with unread bytes, and a reset may overtake the
last answers. The requests that are read then are dropped: their client sees a closed connection and sends them elsewhere.
Only Produce requests with acks=0 are forwarded: their client takes them for done.

A client that closes its side alone gets the answers to its requests, as from a broker, and is closed behind them.
"""

import asyncio
from typing import Final, Protocol, cast

from gateway.proxy.session_front import ClientProtocol

LINGER_SECONDS: Final = 2.0
"""The time for a client to close its side after the half-close."""


class DrainedSession(ClientProtocol, Protocol):
    """The session that ends."""

    def half_close(self) -> bool:
        """Answer nothing any more, if every request that has begun is answered; else return False."""
        ...


class Draining:
    """The asyncio protocol of a client's connection that is to end. It replaces `Session`, so that others cost no check."""

    def __init__(self, session: DrainedSession, client: asyncio.Transport) -> None:
        self._session = session
        self._client = client
        self._timer: asyncio.TimerHandle | None = None
        self.half_closed = False
        self.client_ended = False
        """True once all that the client has sent is read."""

    def begin(self) -> None:
        self._client.set_protocol(cast("asyncio.Protocol", self))
        self.go_on()

    def go_on(self) -> None:
        """Half-close the connection, if every request that has begun is answered."""
        if self.half_closed or self._client.is_closing() or not self._session.half_close():
            return
        self.half_closed = True
        self._client.write_eof()
        if self.client_ended:
            self._client.close()
        else:
            self._linger()

    def end_with_client(self) -> bool:
        """Close the connection behind the last answer, as the client has closed its side. False if none is due."""
        self.client_ended = True
        self.go_on()
        return not self.half_closed

    def _linger(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._wait_no_more)

    def _wait_no_more(self) -> None:
        if self._client.get_write_buffer_size():  # its last answers are still on their way
            self._linger()
        else:
            self._client.close()

    # The client's connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Required by asyncio; the session has the connection already."""

    def data_received(self, data: bytes) -> None:
        self._session.data_received(data)
        if not self.half_closed:
            self.go_on()

    def pause_writing(self) -> None:
        self._session.pause_writing()

    def resume_writing(self) -> None:
        self._session.resume_writing()

    def eof_received(self) -> bool:
        """After a half-close the client may cut a request, and the transport closes our side as well."""
        return not self.half_closed and self._session.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._session.connection_lost(exc)
