"""From SIGTERM to the end: how a gateway, or one worker of it, hands its clients to others.

1. `/readyz` answers 503. For `connections.drain_delay_seconds` Weir still accepts, until balancers send clients elsewhere.
2. Listeners accept the connections that the kernel has completed so far, and no later ones.
3. Weir ends sessions at a bounded pace (`proxy/draining.py`), because each client then connects to another gateway, perhaps
   with a TLS handshake.
4. After `connections.drain_seconds`, or at a second SIGTERM (for a worker: SIGUSR1), Weir cuts the remaining connections.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from gateway import clock
from gateway.features.connection_quotas.config import ConnectionsConfig
from gateway.overdue import EndWithin, no_deadline
from gateway.proxy.sessions import OpenSession, Sessions

ENDED_PER_SECOND = 200.0
"""Sessions that begin to drain per second; more if half of `drain_seconds` would not be enough for all of them."""

GRACE_SECONDS = 10.0
"""The time after the drain to write the ledger and the state. Weir asks its service manager for it, and gives it to workers."""

END_SECONDS = GRACE_SECONDS - 1.0
"""The process is cut off so long after the drain, while there is still time for a line in the log."""

REPORT_SECONDS = 5.0
"""Seconds between two log lines about the remaining connections."""

_STEP_SECONDS = 0.05

_log = logging.getLogger("weir.drain")


class Stopping:
    """The requests of signals: `requested` to drain and end, `at_once` to end now. Both are set from the event loop.

    `end_within` gets the seconds for each step of the end. During a start, a hung disk may keep all further steps.
    """

    def __init__(self, end_within: EndWithin = no_deadline) -> None:
        self.requested = asyncio.Event()
        self.at_once = asyncio.Event()
        self.end_within = end_within

    def request(self) -> None:
        """SIGTERM or SIGINT of a gateway without workers: the first one drains, the next one cuts."""
        if self.requested.is_set():
            self.at_once.set()
        self.drain()

    def drain(self) -> None:
        """SIGTERM of a worker. A second one must not cut, as both systemd and the supervisor send one to each worker."""
        if not self.requested.is_set():
            self.end_within(END_SECONDS)
        self.requested.set()

    def cut(self) -> None:
        """SIGUSR1 of a worker: the supervisor has received a second signal."""
        self.at_once.set()
        self.drain()


class Listening(Protocol):
    """The part of a listener that the drain uses."""

    @property
    def starting(self) -> int:
        """The number of accepted connections without a session."""
        ...

    def finish(self) -> None:
        """Accept the connections that are complete by now, and no later ones."""
        ...


class Drain:
    """Ends the sessions of one process. `config` is called when the drain begins, as a reload may have changed it."""

    def __init__(self, sessions: Sessions, listeners: Sequence[Listening], config: Callable[[], ConnectionsConfig]) -> None:
        self._sessions = sessions
        self._listeners = listeners
        self._config = config
        self._drained = 0
        self.active = False

    async def run(self, at_once: asyncio.Event) -> None:
        """Drain until no session is left, the time is over, or `at_once` is set. The caller cuts the remaining sessions."""
        config, began = self._config(), clock.monotonic()
        self.active = True
        if config.drain_delay_seconds > 0.0 and not at_once.is_set():
            _log.info("draining: /readyz answers 503; Weir accepts connections for %g s more", config.drain_delay_seconds)
            await _first_of(config.drain_delay_seconds, at_once.wait())
        for listener in self._listeners:
            listener.finish()
        if not at_once.is_set():
            _log.info("draining %d connections for up to %g s", len(self._sessions), config.drain_seconds)
            await _first_of(config.drain_seconds, at_once.wait(), self._end_sessions(config.drain_seconds), self._report())
        self._conclude(clock.monotonic() - began)

    async def _end_sessions(self, seconds: float) -> None:
        """End all sessions, the oldest first and the last one after half of `seconds` at most. Return when none is left."""
        waiting: deque[OpenSession] = deque(self._sessions)
        taken_up = set(waiting)
        pace = max(ENDED_PER_SECOND, 2.0 * len(waiting) / max(seconds, _STEP_SECONDS))
        began = clock.monotonic()
        while True:
            allowed = int((clock.monotonic() - began + _STEP_SECONDS) * pace)
            while waiting and self._drained < allowed:
                session = waiting.popleft()
                session.drain()
                self._drained += session.draining  # a session that is closing already does not drain
            if not waiting:  # handshakes that end by now make sessions
                waiting.extend(session for session in self._sessions if session not in taken_up)
                taken_up.update(waiting)
            if waiting or any(listener.starting for listener in self._listeners):
                await asyncio.sleep(_STEP_SECONDS)
            elif len(self._sessions):
                await self._sessions.wait_empty()
            else:
                return

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            left, under_way = self._left()
            _log.info("draining: %d connections are left, with %d requests under way", left, under_way)

    def _conclude(self, seconds: float) -> None:
        cut, under_way = self._left()
        drained = self._drained - sum(session.draining and not session.half_closed for session in self._sessions)
        level = logging.WARNING if cut else logging.INFO
        _log.log(
            level, "drained in %.1f s: %d connections closed between two requests, %d closed with %d unanswered requests",
            seconds, drained, cut, under_way, extra={"drained": drained, "cut": cut, "seconds": round(seconds, 1)},
        )  # fmt: skip

    def _left(self) -> tuple[int, int]:
        """The number of sessions that have not ended, and the number of their requests in flight."""
        left = [session for session in self._sessions if not session.half_closed]
        return len(left), sum(session.under_way for session in left)


async def _first_of(seconds: float, *what: Coroutine[Any, Any, object]) -> None:
    """Wait until one coroutine is done, for at most `seconds`; cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in what]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
