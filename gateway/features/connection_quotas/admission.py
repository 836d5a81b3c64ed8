"""Admits or refuses each new connection before a session is made. All acceptors of a gateway share the object."""

import asyncio
import logging
import socket
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from gateway.clock import monotonic
from gateway.features.connection_quotas.rules import ConnectionQuotas, ConnectionSlot
from gateway.observer import Outlet
from gateway.proxy.listeners.acceptor import WaitingAcceptor
from gateway.quotas.entity import BOOTSTRAP, short_name

MAX_HELD = 1_000
"""The maximum number of held sockets. Further refused connections are closed at once."""

_TOGETHER = 0.001
"""Waits whose ends differ by less than this time (seconds) end together: uvloop's timers count whole milliseconds."""

_log = logging.getLogger("weir.cluster")


class Closable(Protocol):
    """The part of a socket that `HeldSockets` needs."""

    def close(self) -> None: ...


class HeldSockets:
    """At most `max_held` sockets of clients that connect too often. They stay open, so that clients do not reconnect at once.

    Weir reads nothing from a held socket. Times are monotonic seconds.
    """

    def __init__(self, max_held: int) -> None:
        self._max_held = max_held
        self._by_end: list[tuple[float, int, Closable]] = []
        self._sequence = 0  # sockets can't be compared, so it decides between equal times

    def __len__(self) -> int:
        return len(self._by_end)

    def hold(self, held: Closable, until: float) -> bool:
        """Keep a socket open until that time. Return False if `max_held` sockets are open; then the caller closes this one."""
        if len(self._by_end) >= self._max_held:
            return False
        self._sequence += 1
        heappush(self._by_end, (until, self._sequence, held))
        return True

    def close_due(self, now: float) -> float | None:
        """Close the sockets whose time is over. Return the time of the next socket, None without any."""
        while self._by_end and self._by_end[0][0] <= now:
            heappop(self._by_end)[2].close()
        return self._by_end[0][0] if self._by_end else None

    def close_all(self) -> None:
        while self._by_end:
            self._by_end.pop()[2].close()


class ConnectionAdmission:
    """Joins `ConnectionQuotas` with sockets and timers."""

    def __init__(self, quotas: ConnectionQuotas, outlet: Outlet, *, max_held: int = MAX_HELD) -> None:
        self.quotas = quotas
        self._outlet = outlet
        self._held = HeldSockets(max_held)
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[WaitingAcceptor, float] = {}  # until when, or inf: until a place becomes free
        self._turn: asyncio.TimerHandle | None = None
        self._turn_at = inf
        quotas.on_release(self._resume)
        quotas.on_refusal(self._refused)

    @property
    def held(self) -> int:
        return len(self._held)

    def may_accept(self, listener: str, acceptor: WaitingAcceptor) -> bool:
        """True if the listener may accept a connection now. Otherwise `acceptor` starts when this may have changed."""
        now = monotonic()
        seconds = self.quotas.wait(listener, now)
        if seconds <= 0.0:
            acceptor.last_turn = now
            return True
        self._waiting[acceptor] = now + seconds
        if seconds == inf:
            key, full = "listeners[].max_connections", self.quotas.listeners[listener]
            if self.quotas.gateway.wait(now) == inf:
                key, full = "connections.max_connections", self.quotas.gateway
            _log.warning(
                "listener %s: new connections wait, because %s (%s) are open — raise it, or close connections of clients",
                listener, key, full.limits.max_connections,
                extra={"reason": "max_connections", "listener": listener},
            )  # fmt: skip
        else:
            self._wake_at(now + seconds, now)
        return False

    def admit(
        self,
        listener: str,
        connection: socket.SocketType,
        ip: str,
        port: int,
        *,
        broker: int = BOOTSTRAP,
        limit_address: bool = True,
    ) -> ConnectionSlot | None:
        """Count a new connection. Returns None for a refused connection; this object closes its socket."""
        now = monotonic()
        verdict = self.quotas.accept(listener, ip, now, broker=broker, limit_address=limit_address)
        if isinstance(verdict, ConnectionSlot):
            return verdict
        reason = verdict.reason
        if verdict.delay > 0.0:
            if self._held.hold(connection, now + verdict.delay):
                if self._timer is None:
                    self._close_due()
            else:
                connection.close()
                reason = "too_many_held"
        else:
            connection.close()
        self._outlet.connection_rejected(reason, ip, listener)
        _log.warning(
            "connection refused: %s", _CAUSES[reason], extra={"peer": f"{ip}:{port}", "reason": reason, "listener": listener}
        )
        return None

    def _refused(self, slot: ConnectionSlot, user: str, reason: str) -> None:
        self._outlet.connection_rejected(reason, slot.ip, slot.listener, short_name(user))
        _log.warning(
            "connection refused: user %s %s", user, _CAUSES[reason],
            extra={"peer": f"{slot.ip}:0", "reason": reason, "user": user, "listener": slot.listener},
        )  # fmt: skip

    def follow_limits(self) -> None:
        """Let all that wait ask again, as limits may have changed."""
        self._start(list(self._waiting))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self._held.close_all()

    def _close_due(self) -> None:
        now = monotonic()
        due = self._held.close_due(now)
        # A socket that is held later may be due earlier. Weir then closes the socket late, by less than one delay.
        self._timer = None if due is None else asyncio.get_running_loop().call_later(due - now, self._close_due)

    def _resume(self) -> None:
        self._start([acceptor for acceptor, until in self._waiting.items() if until == inf])

    def _wake_at(self, until: float, now: float) -> None:
        """Have a timer for the first wait that ends."""
        if self._turn is None or until < self._turn_at:
            if self._turn is not None:
                self._turn.cancel()
            self._turn_at = until
            self._turn = asyncio.get_running_loop().call_later(until - now, self._end_waits)

    def _end_waits(self) -> None:
        self._turn = None
        now = monotonic()
        self._start([acceptor for acceptor, until in self._waiting.items() if until < now + _TOGETHER])
        first = min(self._waiting.values(), default=inf)
        if first < inf:
            self._wake_at(first, now)

    def _start(self, acceptors: list[WaitingAcceptor]) -> None:
        """Let them look again. There may be room for one only: in a fixed order, one port would get each place."""
        for acceptor in sorted(acceptors, key=lambda each: each.last_turn):
            del self._waiting[acceptor]
            acceptor.start()


_CAUSES = {
    "max_per_ip": "the address has as many connections as connections.max_per_ip allows",
    "connection_creation_rate": "the address connects more often than its connection_creation_rate allows",
    "max_per_user": "has as many connections as its max_connections in quotas.entities allows",
    "creation_rate_per_user": "connects much more often than its connection_creation_rate in quotas.entities allows",
    "too_many_held": "the address connects more often than its connection_creation_rate allows, and Weir holds no more sockets",
}
