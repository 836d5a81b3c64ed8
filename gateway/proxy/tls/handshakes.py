"""TLS handshakes with clients: a time limit, a limit on their number, and the log and metrics of failures."""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

from gateway.cluster.brokers import Address
from gateway.proxy.counters import Counters
from gateway.proxy.tls.causes import Cause, cause_of
from gateway.proxy.tls.client_hello import ClientHellos
from gateway.proxy.tls.contexts import LiveContext, ServerObject
from gateway.proxy.tls.tls_transport import TlsTransport
from gateway.proxy.wire import Data
from gateway.quotas.owned_places import owner_of

MAX_HANDSHAKES: int = 1_024
"""The limit on concurrent handshakes of a listener. One more ends the oldest handshake of the address with the most. So an
address that opens idle connections only affects itself. An IPv6 host has many addresses, so its /64 network counts."""

_log = logging.getLogger("weir.tls")

_CLOSED: Final = Cause("closed", "the peer closed the connection during the handshake")


class AcceptedHandshake:
    """The handshake of one accepted connection, in progress until it leaves the `Handshakes`."""

    __slots__ = ("_handshakes", "_hellos", "_make", "_release", "due", "owner", "peer", "transport")

    def __init__(
        self,
        handshakes: "Handshakes",
        client: Address,
        make: Callable[[], asyncio.BaseProtocol],
        release: Callable[[], None],
        due: float,
        context: ssl.SSLContext,
    ) -> None:
        self._handshakes = handshakes
        self._hellos = ClientHellos()
        self._make = make
        self._release = release
        self.due = due
        self.owner = owner_of("", client[0])
        self.peer = f"{client[0]}:{client[1]}"
        self.transport = TlsTransport(context, self)

    def check(self, received: Data, outgoing: ssl.MemoryBIO) -> None:
        self._hellos.check(received, outgoing)

    def finished(self) -> asyncio.BaseProtocol:
        self._handshakes.leave(self)
        return self._make()

    def failed(self, error: ssl.SSLError) -> None:
        self._handshakes.fail(self, _cause(error, self.transport.get_extra_info("ssl_object")))

    def lost(self, error: Exception | None) -> None:
        self._handshakes.fail(self, _CLOSED if error is None else cause_of(error, "the client's"))
        self._release()


class Handshakes:
    """The handshakes of a listener. `name` is the listener's; `seconds` limits one handshake."""

    def __init__(self, name: str, live: LiveContext[ssl.SSLContext], seconds: float, counters: Counters) -> None:
        self._name = name
        self._live = live
        self._seconds = seconds
        self._counters = counters
        self._in_progress: dict[AcceptedHandshake, None] = {}  # the oldest first
        self._per_owner: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_progress(self) -> int:
        return len(self._in_progress)

    def begin(self, client: Address, make: Callable[[], asyncio.BaseProtocol], release: Callable[[], None]) -> TlsTransport:
        """Return the protocol of an accepted connection, which waits for the client's handshake.

        After the handshake, `make` creates the session's protocol. If the handshake fails, `release` is called once the
        connection is lost.
        """
        if len(self._in_progress) >= MAX_HANDSHAKES:
            (greediest, _), *_ = self._per_owner.most_common(1)
            oldest = next(other for other in self._in_progress if other.owner == greediest)
            self._cut(oldest, Cause("crowded_out", f"{greediest} has most of the {MAX_HANDSHAKES} handshakes in progress"))
        loop = asyncio.get_running_loop()
        mine = AcceptedHandshake(self, client, make, release, loop.time() + self._seconds, self._live.context)
        self._in_progress[mine] = None
        self._per_owner[mine.owner] += 1
        self._counters.handshakes += 1
        if self._timer is None:
            self._timer = loop.call_at(mine.due, self._end_late)
        return mine.transport

    def close(self) -> None:
        """Close the connections without a session."""
        for handshake in list(self._in_progress):
            self.leave(handshake)
            handshake.transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def leave(self, handshake: AcceptedHandshake) -> None:
        """The handshake is no longer in progress."""
        if handshake not in self._in_progress:
            return
        del self._in_progress[handshake]
        self._counters.handshakes -= 1
        self._per_owner[handshake.owner] -= 1
        if not self._per_owner[handshake.owner]:
            del self._per_owner[handshake.owner]

    def fail(self, handshake: AcceptedHandshake, cause: Cause) -> None:
        """Log and count the failure of a handshake in progress. A further failure of the same one has no effect."""
        if handshake not in self._in_progress:
            return
        self.leave(handshake)
        self._counters.handshake_failures[cause.reason] += 1
        # A client that connects and disconnects is usually a health check.
        level = logging.INFO if cause.reason == "closed" else logging.WARNING
        _log.log(
            level,
            "listener %s: TLS handshake failed: %s",
            self._name, cause.words, extra={"peer": handshake.peer, "reason": f"tls_{cause.reason}"},
        )  # fmt: skip

    def _cut(self, handshake: AcceptedHandshake, cause: Cause) -> None:
        self.fail(handshake, cause)
        handshake.transport.abort()

    def _end_late(self) -> None:
        """End the handshakes that took too long. One timer is enough, as all have the same time limit."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._in_progress:
            oldest = next(iter(self._in_progress))
            if oldest.due > loop.time():
                self._timer = loop.call_at(oldest.due, self._end_late)
                return
            self._cut(oldest, Cause("timeout", f"it did not finish within {self._seconds:g} s"))


def _cause(error: ssl.SSLError, connection: object) -> Cause:
    if error.reason != "CALLBACK_FAILED":
        return cause_of(error, "the client's")
    name = connection.server_name if isinstance(connection, ServerObject) else None
    if name is None:
        return Cause("server_name", "the client sent no valid server name (SNI), which selects the broker: "
                     "the client must connect to a host name, not to an IP address")  # fmt: skip
    return Cause("server_name", f"the client asked for {name!r} (SNI), but no broker has that name")


def server_name(connection: object) -> str | None:
    """The server name (SNI) of a finished handshake in lower case, or None."""
    return connection.server_name if isinstance(connection, ServerObject) else None
