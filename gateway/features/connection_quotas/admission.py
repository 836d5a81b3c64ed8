"""Who is let in, decided for each connection before anything is made for it: what all acceptors of a gateway share."""

import asyncio
import logging
import socket
from collections.abc import Callable
from math import inf

from gateway.clock import monotonic
from gateway.features.connection_quotas.held_sockets import HeldSockets
from gateway.features.connection_quotas.rules import ConnectionQuotas, Slot
from gateway.observer import Outlet

MAX_HELD = 1_000
"""Sockets that wait to be closed. Whoever is turned away beyond that is closed at once."""

_log = logging.getLogger("weir.cluster")


class Admission:
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
        """How many sockets wait to be closed."""
        return len(self._held)

    def wait(self, listener: str, resume: Callable[[], None]) -> float:
        """Seconds until the listener may take a connection; inf: `resume` is called when it is worth to ask again."""
        seconds = self.quotas.wait(listener, monotonic())
        if seconds == inf:
            _log.warning(
                "listener %s: new connections wait, as many are open as max_connections allows", listener,
                extra={"reason": "max_connections", "listener": listener},
            )  # fmt: skip
            self._waiting.append(resume)
        return seconds

    def admit(self, listener: str, connection: socket.socket, ip: str, port: int) -> Slot | None:
        """Count a new connection, or turn it away, and then it is closed here."""
        now = monotonic()
        verdict = self.quotas.arrive(listener, ip, now)
        if isinstance(verdict, Slot):
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
        """Close whoever is held."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.close_all()

    def _close_due(self) -> None:
        now = monotonic()
        due = self._held.close_due(now)
        # Whoever comes next may be due earlier than that, and is then closed late by less than one delay.
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
