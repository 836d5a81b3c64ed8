"""A session's connection to its broker, from the client's first bytes on."""

import asyncio
from typing import Final, cast

from gateway.proxy.sessions import SessionHost
from gateway.proxy.socket_transport import SocketTransport, is_own
from gateway.proxy.wire import Data

WRITE_BUFFER_HIGH: Final = 256 * 1024
"""Bytes that may wait for a slow peer before the other side is no longer read."""

CLOSE_SECONDS: Final = 5.0
"""The time for the end of TLS with a broker whose client has gone."""

# Reasons not to read the client's socket.
BROKER_FULL: Final = 2
CONNECTING: Final = 4


def has_unsent(broker: asyncio.Transport, *, unanswered: bool) -> bool:
    """True if bytes may still wait for the broker. `unanswered`: its last Produce had acks=0.

    uvloop's TLS transport does not count the bytes that its socket's buffer holds, until its end.
    """
    return broker.get_write_buffer_size() > 0 or (unanswered and _is_tls(broker))


def end_soon(broker: asyncio.Transport | None) -> None:
    """Abort a connection that is closing and that nobody needs, if its broker does not end TLS in time."""
    if broker is not None and _is_tls(broker):
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, broker.abort)


def _is_tls(broker: asyncio.Transport) -> bool:
    return broker.get_extra_info("sslcontext") is not None


class BrokerSession:
    """The session of a broker's connection. A class and no `Protocol`, as compiled code calls its methods faster."""

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
        raise NotImplementedError

    def resume(self, why: int) -> None:
        """Remove a reason, and read the client if none is left."""
        raise NotImplementedError


class BrokerEnd:
    """The asyncio protocol of the connection to the broker."""

    def __init__(self, session: BrokerSession) -> None:
        self._session = session

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        broker = cast("asyncio.Transport", transport)
        broker.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        if is_own(transport):  # any other one is the result of `Dial`
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
        self._attempt: SocketTransport | None = None
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False

    def begin(self) -> None:
        """Connect. `broker_connected` may be called within this call."""
        at_once = self._host.dial_at_once
        attempt = None if at_once is None else at_once(self._broker_end())
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

    def cancel(self) -> None:
        """Stop connecting, as nobody needs the broker any more."""
        self._cancelled = True
        if self._attempt is not None:
            self._attempt.abort()
        if self._task is not None:
            self._task.cancel()

    def _broker_end(self) -> asyncio.Protocol:
        return cast("asyncio.Protocol", BrokerEnd(self._session))

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
