"""All open sessions of a process, and the end of those that are idle for too long."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Set
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.observer import Outlet
from gateway.proxy.context import SessionContext
from gateway.proxy.counters import Counters
from gateway.proxy.next_turns import NextTurns
from gateway.quotas.bucket import Bucket
from gateway.steps import Steps
from protocol.errors import ProtocolError

ANSWER_SECONDS: Final = 2.0
"""The longest silence of a broker before Weir gives up a client that has closed its side, and that may still read answers."""


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """One open connection. Names are those of buckets (`short_name`).

    `address` is the client's with its port. `broker` is the node id, None for a bootstrap connection. `begun` is monotonic.
    `received_bytes` are the client's since then, `sent_bytes` those that it has acknowledged, both with TLS. `throttled_by` is
    the quota that the client is muted for, "" if it is not muted; `throttle_left` is in seconds. `group` is "" without one.
    """

    user: str
    client_id: str
    software_name: str
    software_version: str
    address: str
    listener: str
    broker: int | None
    begun: float
    received_bytes: int
    sent_bytes: int
    throttled_by: str
    throttle_left: float
    group: str = ""


class OpenSession(Protocol):
    """An open session."""

    last_active: float
    peer: str
    node_id: int | None  # the broker that its client asked for; None at a bootstrap port

    def late_to_authenticate(self, now: float) -> bool:
        """True if the client has to authenticate and has not done so in time."""
        ...

    def close(self, reason: str) -> None:
        """End it after the bytes that are already written have gone out."""
        ...

    def abort(self) -> None: ...

    def give_up(self) -> None:
        """End it, as its client has closed its side and gets no answer, unless requests of that client are still owed."""
        ...

    @property
    def closing(self) -> bool:
        """True if it ends after the bytes that are already written."""
        ...

    def drain(self) -> None:
        """End it once the requests that have begun are answered; no effect if it ends already."""
        ...

    @property
    def draining(self) -> bool: ...

    @property
    def half_closed(self) -> bool:
        """True if every request that had begun is answered, and only the client's own close is missing."""
        ...

    @property
    def under_way(self) -> int:
        """The number of requests in flight."""
        ...

    def let_go(self, buckets: Set[Bucket]) -> None:
        """Unmute the client if it is muted for one of these buckets."""
        ...

    def reconsider(self) -> None:
        """Adapt its mute, as the quotas have changed."""
        ...

    def find_room(self) -> None:
        """Leave the buckets that its client shares because the engine was full (`max_entities`), if there is room now."""
        ...

    def call_ready(self) -> None:
        """Ask the handler that waits once more."""
        ...

    def facts(self, now: float) -> ConnectionFacts | None:
        """Its figures for operators. None: it has ended."""
        ...


class Sessions:
    """Counts sessions, and closes idle ones. Times are monotonic seconds."""

    def __init__(self, counters: Counters, outlet: Outlet, *, max_idle_seconds: float) -> None:
        self._counters = counters
        self._outlet = outlet
        self._open: dict[OpenSession, None] = {}  # in the order of their beginning, so that runs can be repeated
        self._ended: dict[OpenSession, None] = {}  # their clients have closed their side
        self._empty: asyncio.Future[None] | None = None
        self.max_idle_seconds = max_idle_seconds
        self.next_turns = NextTurns()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenSession]:
        return iter(tuple(self._open))

    def node_ids(self) -> set[int | None]:
        """The brokers that clients are connected to."""
        return {session.node_id for session in self._open}

    def add(self, session: OpenSession) -> None:
        self._open[session] = None
        self._counters.connections += 1
        self._counters.connections_total += 1

    def remove(self, session: OpenSession) -> None:
        del self._open[session]
        self._ended.pop(session, None)
        self._counters.connections -= 1
        if not self._open and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def client_ended(self, session: OpenSession) -> None:
        """Its client has closed its side: give it up once no answer comes any more."""
        self._ended[session] = None

    async def wait_empty(self) -> None:
        """Return once no session is open."""
        if self._open:
            self._empty = asyncio.get_running_loop().create_future()
            await self._empty

    def reconsider(self) -> None:
        """Have all sessions look again at how long they are muted."""
        for session in self:
            session.reconsider()

    def find_room(self) -> Steps[None]:
        """Have the sessions whose clients share buckets because the engine was full look for buckets of their own."""
        for session in self:
            if session in self._open:
                session.find_room()
            yield

    def close_idle(self, now: float) -> None:
        """Close the sessions that were silent for too long, muted or not, as Kafka does (KIP-219), or authenticate too late.

        If a client does not read the bytes that are left for it, the next call aborts its session.
        """
        for session in tuple(self._ended):
            if now - session.last_active > ANSWER_SECONDS:
                session.give_up()
        for session in self:
            idle = now - session.last_active > self.max_idle_seconds
            if idle or session.late_to_authenticate(now):
                if session.closing:
                    session.abort()
                    continue
                reason = "idle" if idle else "authentication_timeout"
                self._outlet.connection_rejected(reason, session.peer.rpartition(":")[0])
                session.close(reason)


Dial = Callable[[Callable[[], asyncio.Protocol]], Awaitable[asyncio.Transport]]
"""Connects a protocol to a broker. Raises OSError, also if that takes too long."""


class Attempt(Protocol):
    """A connection that was begun without a task."""

    @property
    def connecting(self) -> bool:
        """True until the protocol has the connection, or until the attempt fails."""
        ...

    def abort(self) -> None: ...

    def fail(self, error: Exception) -> None:
        """As `abort`. The protocol gets the error."""
        ...


DialAtOnce = Callable[[asyncio.Protocol], Attempt | None]
"""Begins to connect a protocol to a broker; None if that takes a `Dial`. After a failure, the protocol only gets
`connection_lost`."""


@dataclass(frozen=True, slots=True)
class SessionHost:
    """The surroundings of a session: the shared parts, the other sessions, and the ways to its broker.

    `node_id` is the broker's, None for a client of a bootstrap port.
    """

    context: SessionContext
    sessions: Sessions
    dial: Dial
    node_id: int | None = None
    dial_at_once: DialAtOnce | None = None
    on_refused: Callable[[asyncio.Transport, ProtocolError], None] = lambda _, __: None
    """Gets the connection to a broker whose bytes end the session."""
    keep: Callable[[asyncio.Transport], bool] = lambda _: False
    """Gets the connection to a broker that may serve another client. False: it is to be closed."""

    @property
    def broker(self) -> str:
        """The broker in log messages."""
        return "the bootstrap broker" if self.node_id is None else f"broker {self.node_id}"
