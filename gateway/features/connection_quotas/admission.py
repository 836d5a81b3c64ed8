"""Decides about each new connection before anything is made for it. All acceptors of a gateway share one object."""

import asyncio
import logging
import socket
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from gateway.clock import monotonic
from gateway.features.connection_quotas.rules import ConnectionQuotas, ConnectionSlot
from gateway.observer import Outlet

MAX_HELD = 1_000
"""Sockets that wait to be closed. Further refused connections are closed at once."""

_log = logging.getLogger("weir.cluster")


class Closable(Protocol):
    """A socket."""

    def close(self) -> None: ...


class HeldSockets:
    """Sockets of clients that connect too often: they stay open for a while, so that their clients do not come back at once.

    Weir reads nothing from a held socket. There are at most `max_held`. Times are monotonic seconds.
    """

    def __init__(self, max_held: int) -> None:
        self._max_held = max_held
        self._by_end: list[tuple[float, int, Closable]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._by_end)

    def hold(self, held: Closable, until: float) -> bool:
        """Keep a socket open until then. Return False if there are too many; the caller closes the socket."""
        if len(self._by_end) >= self._max_held:
            return False
        self._count += 1
        heappush(self._by_end, (until, self._count, held))
        return True

    def close_due(self, now: float) -> float | None:
        """Close the sockets whose time is over. Return the end of the next socket's time, None if there is none."""
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
        self._waiting: list[Callable[[], None]] = []
        quotas.on_leave(self._resume)

    @property
    def held(self) -> int:
        return len(self._held)

    def wait(self, listener: str, resume: Callable[[], None]) -> float:
        """Return the seconds until the listener may take a connection. After `inf`, `resume` is called when that may change."""
        seconds = self.quotas.wait(listener, monotonic())
        if seconds == inf:
            _log.warning(
                "listener %s: new connections wait, as many are open as max_connections allows", listener,
                extra={"reason": "max_connections", "listener": listener},
            )  # fmt: skip
            self._waiting.append(resume)
        return seconds

    def admit(self, listener: str, connection: socket.socket, ip: str, port: int) -> ConnectionSlot | None:
        """Count a new connection. None: it is refused, and this object closes its socket."""
        now = monotonic()
        verdict = self.quotas.arrive(listener, ip, now)
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
            "connection refused: %s", _WHY[reason], extra={"peer": f"{ip}:{port}", "reason": reason, "listener": listener}
        )
        return None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.close_all()

    def _close_due(self) -> None:
        now = monotonic()
        due = self._held.close_due(now)
        # A socket that is held later may be due earlier; then it is closed late by less than one delay.
        self._timer = None if due is None else asyncio.get_running_loop().call_later(due - now, self._close_due)

    def _resume(self) -> None:
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()


_WHY = {
    "max_per_ip": "the address has as many connections as connections.max_per_ip allows",
    "connection_creation_rate": "the address connects more often than its connection_creation_rate allows",
    "too_many_held": "the address connects more often than its connection_creation_rate allows, as many others do",
}
