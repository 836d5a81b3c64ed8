"""The TLS handshake with a broker, and the interface of all handshakes. Those of clients are in `handshakes`."""

import asyncio
import ssl
from typing import Protocol

from gateway.proxy.wire import Data


class Handshake(Protocol):
    """Sees the peer's bytes, and learns of the handshake's end."""

    def check(self, received: Data, outgoing: ssl.MemoryBIO) -> None:
        """Look at bytes that OpenSSL gets next. Raises `ssl.SSLError` to refuse the peer; `outgoing` has the alert then."""
        ...

    def finished(self) -> asyncio.BaseProtocol:
        """The handshake is done. Return the protocol of the connection."""
        ...

    def failed(self, error: ssl.SSLError) -> None:
        """OpenSSL refused the peer. The connection will be lost."""
        ...

    def lost(self, error: Exception | None) -> None:
        """The connection was lost before the end of the handshake."""
        ...


class BrokerHandshake:
    """The handshake with a broker. If it fails, `protocol` only gets `connection_lost`, with an OSError that has the cause.

    `done`, if given, has the end as well: it gets a result or that error.
    """

    def __init__(self, protocol: asyncio.BaseProtocol, done: "asyncio.Future[None] | None" = None) -> None:
        self._protocol = protocol
        self._done = done
        self._error: Exception | None = None

    def check(self, received: Data, outgoing: ssl.MemoryBIO) -> None:
        """Takes everything: brokers are trusted with the cost of a handshake."""

    def finished(self) -> asyncio.BaseProtocol:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
        return self._protocol

    def failed(self, error: ssl.SSLError) -> None:
        self._error = error

    def lost(self, error: Exception | None) -> None:
        # The traceback of the error refers to this object.
        problem, self._error = self._error or error or ConnectionResetError(), None
        done, self._done = self._done, None
        if done is None:
            self._protocol.connection_lost(problem)
        elif not done.done():
            done.set_exception(problem)
