"""A session's connection to its broker, from the client's first bytes on."""

import asyncio
import logging
from typing import Final, cast

from gateway.proxy.sessions import Attempt, SessionHost
from gateway.proxy.tcp_info import has_left, silence_seconds
from gateway.proxy.tls.causes import cause_of
from gateway.proxy.wire import ChunkReader, Data
from protocol.errors import ProtocolError

WRITE_BUFFER_HIGH: Final = 256 * 1024
"""Bytes that may wait for a slow peer before the other side is no longer read."""

# Reasons not to read the client's socket.
CORE: Final = 1
BROKER_FULL: Final = 2
CONNECTING: Final = 4
REFUSED: Final = 8


def loss_of(error: Exception | None) -> tuple[int, str, str]:
    """The log level, the reason and the text for a broker's connection that has ended."""
    if isinstance(error, ProtocolError):  # of its TLS
        why = str(error) if error.__cause__ is None else cause_of(error.__cause__, "the broker's").words
        return logging.WARNING, "broker_tls", f"ended the connection: {why}"
    return logging.INFO, "broker_closed", f"closed the connection: {error}" if error else "closed the connection"


class BrokerSession(ChunkReader):
    """The session of a broker's connection. A class and no `Protocol`, as compiled code calls its methods faster."""

    _client: asyncio.Transport | None
    _paused: int
    """Reasons not to read the client."""

    def broker_connected(self, broker: asyncio.Transport) -> None:
        raise NotImplementedError

    def broker_unreachable(self, error: Exception | None) -> None:
        """No broker can be reached, or the dialing was cancelled (None)."""
        raise NotImplementedError

    def broker_data(self, data: bytes) -> None:
        raise NotImplementedError

    def broker_lost(self, exc: Exception | None) -> None:
        raise NotImplementedError

    def pause(self, why: int) -> None:
        """Add a reason not to read the client."""
        if not self._paused and self._client is not None:
            self._client.pause_reading()
        self._paused |= why

    def resume(self, why: int) -> None:
        """Remove a reason, and read the client if none is left."""
        before, self._paused = self._paused, self._paused & ~why
        if before and not self._paused and self._client is not None and not self._client.is_closing():
            self._client.resume_reading()

    # The client's socket, for the `Wire` of the core.

    def client_silence_seconds(self) -> float:
        client = self._client
        return 0.0 if client is None or client.is_closing() else silence_seconds(client.get_extra_info("socket"))

    def client_has_left(self) -> bool:
        return self._client is None or has_left(self._client.get_extra_info("socket"))


class BrokerEnd(ChunkReader):
    """The asyncio protocol of the connection to the broker. Without `at_once`, the connection is the result of `Dial`."""

    def __init__(self, session: BrokerSession, *, at_once: bool) -> None:
        self._session = session
        self._at_once = at_once

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        broker = cast("asyncio.Transport", transport)
        broker.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        if self._at_once:
            self._session.broker_connected(broker)

    def data_received(self, data: bytes) -> None:
        self._session.broker_data(data)

    def pause_writing(self) -> None:
        self._session.pause(BROKER_FULL)

    def resume_writing(self) -> None:
        self._session.resume(BROKER_FULL)

    def eof_received(self) -> None:
        """The broker has closed its side: the transport closes ours."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client's connection as well: its next one may find another broker."""
        self._session.broker_lost(exc)


class Dialing:
    """The connection attempts of one session. `early` are the client's bytes that wait for the broker.

    The first attempt is one to a known IP address, without a task. If it fails, `SessionHost.dial` makes the others.
    """

    __slots__ = ("_attempt", "_cancelled", "_host", "_session", "_task", "early", "waited")

    def __init__(self, session: BrokerSession, host: SessionHost, early: Data) -> None:
        self._session = session
        self._host = host
        self.early: list[Data] = [early]
        self.waited = False
        self._attempt: Attempt | None = None
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False

    def begin(self) -> None:
        """Connect. `broker_connected` may be called within this call."""
        at_once = self._host.dial_at_once
        attempt = None if at_once is None else at_once(self._broker_end(at_once=True))
        if attempt is None:
            self._wait()
            self._dial_others()
        elif attempt.connecting:
            self._wait()
            self._attempt = attempt

    def lose_attempt(self) -> bool:
        """Go on after the first attempt has failed. False if none was under way."""
        if self._attempt is None:
            return False
        self._attempt = None
        if self._cancelled:
            self._session.broker_unreachable(None)
        else:
            self._dial_others()
        return True

    def deliver(self, broker: asyncio.Transport) -> None:
        """Write the early bytes, as the broker is connected."""
        for data in self.early:
            broker.write(data)
        self.early.clear()

    def cancel(self) -> None:
        """Stop connecting, as nobody needs the broker any more."""
        self._cancelled = True
        if self._attempt is not None:
            self._attempt.abort()
        if self._task is not None:
            self._task.cancel()

    def _broker_end(self, *, at_once: bool = False) -> asyncio.Protocol:
        return cast("asyncio.Protocol", BrokerEnd(self._session, at_once=at_once))

    def _wait(self) -> None:
        self.waited = True
        self._session.pause(CONNECTING)

    def _dial_others(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._dial())
        self._task.add_done_callback(self._dialed)  # a task that is cancelled before its first step runs no code of its own

    async def _dial(self) -> None:
        try:
            self._session.broker_connected(await self._host.dial(self._broker_end))
        except Exception as error:  # without an end, the client would stay paused
            self._session.broker_unreachable(error)

    def _dialed(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            self._session.broker_unreachable(None)
