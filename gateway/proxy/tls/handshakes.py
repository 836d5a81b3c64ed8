"""Handshakes with clients: a time limit, a bound on how many may be under way, and what becomes of those that fail."""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from gateway.proxy.tls.causes import Cause, cause_of
from gateway.proxy.tls.contexts import HandshakeError, LiveContext, ServerContext

MAX_UNDER_WAY = 1_024
"""So many of a listener's connections may be in their handshake. One more takes the place of the oldest one of the address
that has most of them: who opens connections and says nothing crowds out himself alone."""

SHUTDOWN_SECONDS = 5.0
"""For a client to answer TLS's goodbye."""

_log = logging.getLogger("weir.tls")


class HandshakeCounters(Protocol):
    """What is counted: those under way now, and failures by reason."""

    handshakes: int
    handshake_failures: Counter[str]


@dataclass(eq=False, slots=True)
class _UnderWay:
    task: "asyncio.Task[None] | None"
    host: str
    crowded_out: bool = False


class Handshakes:
    """Makes TLS connections of a listener's sockets. `name` is the listener's; `seconds` is how long a handshake may take."""

    def __init__(self, name: str, live: LiveContext[ServerContext], seconds: float, counters: HandshakeCounters) -> None:
        self._name = name
        self._live = live
        self._seconds = seconds
        self._counters = counters
        self._under_way: dict[_UnderWay, None] = {}  # the oldest first
        self._per_host: Counter[str] = Counter()

    async def perform(self, connection: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Make a connection of a socket that was accepted. Raises OSError where it fails, which is then counted and logged."""
        host, port = connection.getpeername()[:2]
        goodbye = connection.dup()
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
            self._failed(peer, Cause("crowded_out", f"its address has too many others of {MAX_UNDER_WAY} under way"))
            raise ConnectionAbortedError("crowded out by others of its address") from None
        except HandshakeError as error:
            with suppress(OSError):  # the client is gone, or has not read what it was sent before
                goodbye.send(error.alert, socket.MSG_DONTWAIT)
            self._failed(peer, _cause(error))
            raise
        except OSError as error:
            self._failed(peer, self._cause_of_silence(error))
            raise
        finally:
            goodbye.close()
            self._leave(mine)

    def _enter(self, host: str, task: "asyncio.Task[None] | None") -> _UnderWay:
        if len(self._under_way) >= MAX_UNDER_WAY:
            (greediest, _), *_ = self._per_host.most_common(1)
            oldest = next(other for other in self._under_way if other.host == greediest and not other.crowded_out)
            oldest.crowded_out = True
            if oldest.task is not None:
                oldest.task.cancel()
            self._leave(oldest)
        mine = _UnderWay(task, host)
        self._under_way[mine] = None
        self._per_host[host] += 1
        self._counters.handshakes += 1
        return mine

    def _leave(self, one: _UnderWay) -> None:
        if one not in self._under_way:
            return
        del self._under_way[one]
        self._counters.handshakes -= 1
        self._per_host[one.host] -= 1
        if not self._per_host[one.host]:
            del self._per_host[one.host]

    def _cause_of_silence(self, error: OSError) -> Cause:
        cause = cause_of(error, "the client's")
        return Cause("timeout", f"it was not finished within {self._seconds:g} s") if cause.reason == "timeout" else cause

    def _failed(self, peer: str, cause: Cause) -> None:
        self._counters.handshake_failures[cause.reason] += 1
        # Who connects and leaves is a health check, more often than not.
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
        return Cause("server_name", "the client named no server (SNI), so that it can't be told which broker it wants: "
                     "it has to connect by name, not by address")  # fmt: skip
    return Cause("server_name", f"the client asked for {failure.server_name!r} (SNI), and no broker has that name")


def server_name(transport: asyncio.BaseTransport) -> str | None:
    """The name that the client of a finished handshake asked for, in lower case; None for none."""
    name: str | None = getattr(transport.get_extra_info("ssl_object"), "server_name", None)
    return name


def client_certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """The certificate (DER) that the client of a finished handshake has proved to own; None for none."""
    connection: ssl.SSLObject = transport.get_extra_info("ssl_object")
    return connection.getpeercert(binary_form=True)
