"""Accepts connections from a listening socket, at the rate that the connection quotas allow.

asyncio's own server accepts every connection at once, creates a transport, and starts the TLS handshake. Here a connection
costs only one `accept` until the quotas have admitted it.
"""

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, cast

from gateway import open_files
from gateway.binding import BACKLOG
from gateway.cluster.brokers import Address
from gateway.proxy.listeners.accept_queue import AcceptQueue
from gateway.proxy.listeners.proxy_headers import ProxyHeaders
from gateway.proxy.poller import Poller
from gateway.proxy.socket_transport import SocketTransport
from gateway.proxy.tcp_info import has_left
from gateway.proxy.tls.handshakes import Handshakes
from gateway.proxy.tls.tls_transport import TlsTransport
from gateway.proxy.wire import Slot
from gateway.quotas.entity import BOOTSTRAP

ACCEPTS_PER_WAKE = 32
"""The limit on accepted connections before the event loop serves open connections again; about 1 ms of work."""

RETRY_SECONDS = 1.0

_CONNECTION_ERRORS = frozenset({
    errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ENONET, errno.ENETDOWN,
    errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ECONNRESET,
})  # fmt: skip
"""Linux returns errors of the new connection from accept (accept(2), "Error handling"). EPERM comes from a firewall."""

_log = logging.getLogger("weir.cluster")


class WaitingAcceptor(Protocol):
    """The part of an acceptor that an `Admission` uses. `last_turn` is the last time when it might accept (monotonic)."""

    last_turn: float

    def start(self) -> None: ...


class Admission(Protocol):
    """Checks new connections against the limits. `features.connection_quotas` implements it for all acceptors of a gateway."""

    def may_accept(self, listener: str, acceptor: WaitingAcceptor) -> bool:
        """True if the listener may accept a connection now. Otherwise this object starts the acceptor when it may accept.

        Of several such acceptors, the one whose last turn is the oldest starts first.
        """

    def admit(
        self, listener: str, connection: socket.SocketType, ip: str, port: int, *, broker: int, limit_address: bool = True
    ) -> Slot | None:
        """Count a new connection, or refuse it: close its socket and return None. `broker` is that of the port.

        Without `limit_address`, the limits on addresses refuse nothing.
        """


Serve = Callable[[Slot, Address], asyncio.BaseProtocol]
"""Creates the protocol of a client's connection. The protocol releases the slot in `connection_lost`."""


class Acceptor:
    """Accepts connections from one listening socket, and owns the socket. With `tls`, connections start with a handshake.

    `listener` is the name of the listener in the config, `broker` the node id of the port's broker. Connections that must wait
    stay in the kernel's queue. With `headers`, a balancer's connection is admitted only after its header, with the client's
    address. Connections get transports of Weir's own if there is a `poller`, else those of the event loop.
    """

    def __init__(
        self,
        bound: socket.socket,
        serve: Serve,
        admission: Admission,
        listener: str,
        *,
        broker: int = BOOTSTRAP,
        tls: Handshakes | None = None,
        headers: ProxyHeaders | None = None,
        poller: Poller | None = None,
    ) -> None:
        self._bound = bound
        self._queue = AcceptQueue(bound, bare=poller is not None)  # the event loop's transports need sockets of Python's class
        self._serve = serve
        self._admission = admission
        self._listener = listener
        self._broker = broker
        self._tls = tls
        self._headers = headers
        self._poller = poller
        self._introduced: deque[tuple[socket.SocketType, Address, bool]] = deque()  # after their headers, before admission
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._first_reserved = open_files.first_beyond_clients()
        self._full = False  # the last connection took a file that Weir needs itself
        self._delayed = False  # connections wait that might have been accepted earlier
        self.last_turn = 0.0

    def start(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self._bound.fileno() >= 0:
            self._loop.add_reader(self._bound.fileno(), self._accept)
        self._loop.call_soon(self._accept)  # acceptors that start in one turn accept in the same order

    @property
    def starting(self) -> int:
        """The number of accepted connections that are in their PROXY header, or not yet admitted."""
        return len(self._starting) + len(self._introduced)

    def finish(self) -> None:
        """Accept the connections in the kernel's queue, then close the socket. Open connections and handshakes continue.

        Closing the socket alone would reset the queued connections, which their clients regard as established.
        """
        if self._bound.fileno() < 0:
            return
        self._stop_reading()
        for _ in range(len(self._introduced) + BACKLOG + 1):  # a flood of clients might fill the queue for ever
            if not self._accept_one():
                break
        self._loop.remove_reader(self._bound.fileno())  # a pause goes on, for connections that are introduced by then
        self._bound.close()

    def close(self) -> None:
        """Close the socket, and cancel the wait for headers. Open connections continue."""
        for task in self._starting:
            task.cancel()
        while self._introduced:
            self._introduced.popleft()[0].close()
        if self._bound.fileno() >= 0:
            self._stop_reading()
            self._bound.close()

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._bound.fileno())
        if self._pause is not None:
            self._pause.cancel()

    def _accept(self) -> None:
        waiting = len(self._introduced) + self._queue.waiting()
        for _ in range(min(ACCEPTS_PER_WAKE, waiting)):
            if not self._accept_one():
                return
        if self._introduced:
            self._loop.call_soon(self._accept)
        elif waiting <= ACCEPTS_PER_WAKE:
            self._delayed = False

    def _accept_one(self) -> bool:
        """Admit an introduced connection, or accept one. Returns False if there is none or the listener must wait."""
        if not self._admission.may_accept(self._listener, self):
            self._pause_until_start()
            return False
        if self._introduced:
            introduced = self._introduced.popleft()
            if not self._drop_late(introduced[0]):
                self._admit(*introduced)
            return True
        try:
            if self._full:
                open_files.require_below(self._first_reserved)
            connection, address = self._queue.take()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if self._bound.fileno() < 0:  # closed by `finish`, and only introduced connections were left
                return False
            if error.errno in _CONNECTION_ERRORS:  # the client closed it before the accept
                return True
            _log.warning(
                "listener %s: no connection can be accepted for %g s: %s — %s",
                self._listener,
                RETRY_SECONDS,
                error.strerror,
                open_files.remedy(error),
                extra={"reason": f"accept {self._listener}"},
            )
            self._pause_until_start()
            self._pause = self._loop.call_later(RETRY_SECONDS, self.start)
            return False
        self._full = connection.fileno() >= self._first_reserved
        if self._drop_late(connection):
            return True
        connection.setblocking(False)
        peer: Address = address[:2]
        if self._headers is None:
            self._admit(connection, peer)
        elif self._headers.trusts(peer):
            self._run(self._introduce(self._headers, connection, peer))
        elif self._headers.refuse_peer(peer):
            connection.close()
        else:
            self._admit(connection, peer, unread=self._headers)
        return True

    def _drop_late(self, connection: socket.SocketType) -> bool:
        """Close a connection that its client has given up while it waited, and return True.

        Served, it would use the rate up. If more clients wait than the rate serves in their timeout, none would be served.
        """
        late = self._delayed and has_left(connection)
        if late:
            connection.close()
        return late

    def _pause_until_start(self) -> None:
        self._delayed = True
        if self._bound.fileno() >= 0:
            self._loop.remove_reader(self._bound.fileno())

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _introduce(self, headers: ProxyHeaders, connection: socket.SocketType, balancer: Address) -> None:
        try:
            client, limit_address = await headers.read(connection, balancer)
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError):
                raise
            _log.debug("a connection ended before its client was known: %s", error, extra={"peer": balancer[0]})
            return
        self._introduced.append((connection, client, limit_address))
        if len(self._introduced) == 1:  # those before it wait for the listener already
            self._accept_one()

    def _admit(
        self, connection: socket.SocketType, client: Address, limit_address: bool = True, *, unread: ProxyHeaders | None = None
    ) -> None:
        """Start the connection's session, unless a limit refuses it. `unread` refuses a header that a client sends."""
        ip, port = client
        slot = self._admission.admit(self._listener, connection, ip, port, broker=self._broker, limit_address=limit_address)
        if slot is None:
            return
        if self._poller is None or unread is not None:
            self._run(self._begin(connection, slot, client, unread))
            return
        try:
            protocol = self._protocol(slot, client)
        except BaseException:
            slot.release()
            connection.close()
            raise
        SocketTransport(self._poller, connection, protocol).serve()

    def _protocol(self, slot: Slot, client: Address) -> asyncio.BaseProtocol:
        """The protocol of the socket's transport. It releases the slot when the connection is lost."""
        if self._tls is None:
            return self._serve(slot, client)
        tls = self._tls.begin(client, partial(self._serve, slot, client), slot.release)
        return cast("asyncio.BaseProtocol", tls)

    async def _begin(self, connection: socket.SocketType, slot: Slot, client: Address, unread: ProxyHeaders | None) -> None:
        protocol: asyncio.BaseProtocol | None = None
        try:
            if unread is not None:
                await unread.refuse_header(connection, client)
            protocol = self._protocol(slot, client)
            if self._poller is None:
                accepted = cast("socket.socket", connection)
                await self._loop.connect_accepted_socket(cast("Callable[[], asyncio.Protocol]", lambda: protocol), accepted)
            else:
                SocketTransport(self._poller, connection, protocol).serve()
        except BaseException as error:
            if self._tls is None or protocol is None:
                slot.release()
            else:
                cast("TlsTransport", protocol).connection_lost(None)
            connection.close()
            if not isinstance(error, OSError):
                raise
            # The client has disconnected.
            _log.debug("a connection ended before its session started: %s", error, extra={"peer": slot.ip})
