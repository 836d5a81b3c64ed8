"""All open sessions of a process: which have been idle too long, how they end."""

import asyncio
from collections.abc import Iterator, Set
from typing import Protocol

from gateway.observer import Outlet
from gateway.proxy.counters import Counters
from gateway.quotas.bucket import Bucket


class OpenSession(Protocol):
    """What is asked of a session once it is open."""

    last_active: float
    peer: str

    def late_to_authenticate(self, now: float) -> bool:
        """Whether it has to authenticate and has not done so in time."""
        ...

    def close(self, why: str) -> None:
        """End it, after what is already written has gone out."""
        ...

    def abort(self) -> None:
        """End it at once."""
        ...

    @property
    def closing(self) -> bool:
        """Whether it ends as soon as its client has taken what is already written."""
        ...

    def drain(self) -> None:
        """End it once the requests that have begun are answered; without effect where it ends already."""
        ...

    @property
    def draining(self) -> bool:
        """Whether it has been told to end."""
        ...

    @property
    def parted(self) -> bool:
        """Whether everything that was begun has been answered, and only the client's goodbye is missing."""
        ...

    @property
    def under_way(self) -> int:
        """How many requests wait for their answers."""
        ...

    def let_go(self, buckets: Set[Bucket]) -> None:
        """Unmute the client if it is muted for one of these buckets."""
        ...

    def reconsider(self) -> None:
        """Look again at how long it is muted, as the quotas have changed."""
        ...

    def call_ready(self) -> None:
        """Let it go on with a request that could not be decided before."""
        ...


class Sessions:
    """Keeps count. Times are monotonic seconds."""

    def __init__(self, counters: Counters, outlet: Outlet, *, max_idle_seconds: float) -> None:
        self._counters = counters
        self._outlet = outlet
        self._open: set[OpenSession] = set()
        self._empty: asyncio.Future[None] | None = None
        self.max_idle_seconds = max_idle_seconds

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenSession]:
        return iter(tuple(self._open))

    def add(self, session: OpenSession) -> None:
        """A connection that is served from now on."""
        self._open.add(session)
        self._counters.connections += 1
        self._counters.connections_total += 1

    def remove(self, session: OpenSession) -> None:
        """The connection is closed."""
        self._open.remove(session)
        self._counters.connections -= 1
        if not self._open and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def wait_empty(self) -> None:
        """Return once nobody is connected."""
        if self._open:
            self._empty = asyncio.get_running_loop().create_future()
            await self._empty

    def close_idle(self, now: float) -> None:
        """Close whoever was silent for too long, muted or not, as Kafka does (KIP-219), or is too long in authenticating.

        Who does not even take what is left for it is cut off the next time.
        """
        for session in self:
            idle = now - session.last_active > self.max_idle_seconds
            if idle or session.late_to_authenticate(now):
                if session.closing:
                    session.abort()
                    continue
                reason = "idle" if idle else "authentication_timeout"
                self._outlet.connection_rejected(reason, session.peer.rpartition(":")[0])
                session.close(reason)
