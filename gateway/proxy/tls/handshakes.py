"""TLS handshakes with clients: a time limit, a limit on their number, and the log and metrics of failures."""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from gateway.cluster.brokers import Address
from gateway.proxy.tls.causes import Cause, cause_of
from gateway.proxy.tls.contexts import HandshakeError, LiveContext, ServerContext

MAX_HANDSHAKES = 1_024
"""The limit on concurrent handshakes of a listener. One more cancels the oldest handshake of the address with the most. So an
address that opens idle connections only affects itself."""

SHUTDOWN_SECONDS = 5.0
"""The time limit for a client to answer close_notify."""

_log = logging.getLogger("weir.tls")


class HandshakeCounters(Protocol):
    """The number of handshakes in progress, and of failures by reason."""

    handshakes: int
    handshake_failures: Counter[str]


@dataclass(eq=False, slots=True)
class _Pending:
    task: "asyncio.Task[None] | None"
    host: str
    crowded_out: bool = False


class Handshakes:
    """Performs the handshakes of a listener. `name` is the listener's; `seconds` limits one handshake."""

    def __init__(self, name: str, live: LiveContext[ServerContext], seconds: float, counters: HandshakeCounters) -> None:
        self._name = name
        self._live = live
        self._seconds = seconds
        self._counters = counters
        self._pending: dict[_Pending, None] = {}  # the oldest first
        self._per_host: Counter[str] = Counter()

    async def perform(self, connection: socket.socket, client: Address, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Start a TLS connection on an accepted socket. Logs and counts a failure, and raises `OSError`."""
        host, port = client
        alert_socket = connection.dup()
        peer = f"{host}:{port}"
        mine = self._enter(host, asyncio.current_task())
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                protocol,
                connection,
                ssl=self._live.context,
                ssl_handshake_timeout=self._seconds,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
            if transport.get_extra_info("ssl_object") is None:
                raise ConnectionResetError("closed before the handshake was done")
        except asyncio.CancelledError:
            if not mine.crowded_out:
                raise
            self._failed(peer, Cause("crowded_out", f"its address has most of the {MAX_HANDSHAKES} handshakes in progress"))
            raise ConnectionAbortedError("crowded out by other handshakes of its address") from None
        except HandshakeError as error:
            with suppress(OSError):  # the client has disconnected, or its receive buffer is full
                alert_socket.send(error.alert, socket.MSG_DONTWAIT)
            self._failed(peer, _cause(error))
            raise
        except OSError as error:
            self._failed(peer, self._cause_of_silence(error))
            raise
        finally:
            alert_socket.close()
            self._leave(mine)

    def _enter(self, host: str, task: "asyncio.Task[None] | None") -> _Pending:
        if len(self._pending) >= MAX_HANDSHAKES:
            (greediest, _), *_ = self._per_host.most_common(1)
            oldest = next(other for other in self._pending if other.host == greediest and not other.crowded_out)
            oldest.crowded_out = True
            if oldest.task is not None:
                oldest.task.cancel()
            self._leave(oldest)
        mine = _Pending(task, host)
        self._pending[mine] = None
        self._per_host[host] += 1
        self._counters.handshakes += 1
        return mine

    def _leave(self, one: _Pending) -> None:
        if one not in self._pending:
            return
        del self._pending[one]
        self._counters.handshakes -= 1
        self._per_host[one.host] -= 1
        if not self._per_host[one.host]:
            del self._per_host[one.host]

    def _cause_of_silence(self, error: OSError) -> Cause:
        cause = cause_of(error, "the client's")
        return Cause("timeout", f"it did not finish within {self._seconds:g} s") if cause.reason == "timeout" else cause

    def _failed(self, peer: str, cause: Cause) -> None:
        self._counters.handshake_failures[cause.reason] += 1
        # A client that connects and disconnects is usually a health check.
        level = logging.INFO if cause.reason == "closed" else logging.WARNING
        _log.log(
            level,
            "listener %s: TLS handshake failed: %s",
            self._name, cause.words, extra={"peer": peer, "reason": f"tls_{cause.reason}"},
        )  # fmt: skip


def _cause(failure: HandshakeError) -> Cause:
    if failure.error.reason != "CALLBACK_FAILED":
        return cause_of(failure.error, "the client's")
    if failure.server_name is None:
        return Cause("server_name", "the client sent no server name (SNI), which selects the broker: "
                     "the client must connect to a host name, not to an IP address")  # fmt: skip
    return Cause("server_name", f"the client asked for {failure.server_name!r} (SNI), but no broker has that name")


def server_name(transport: asyncio.BaseTransport) -> str | None:
    """The server name (SNI) of a finished handshake in lower case, or None."""
    name: str | None = getattr(transport.get_extra_info("ssl_object"), "server_name", None)
    return name


def client_certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """The verified client certificate (DER) of a finished handshake, or None."""
    connection: ssl.SSLObject = transport.get_extra_info("ssl_object")
    return connection.getpeercert(binary_form=True)
