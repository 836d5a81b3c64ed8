"""Watches the sockets of sessions with one epoll of Weir's own, which the event loop watches like a socket.

For each connection, uvloop makes handles, futures and a task. They cost more than a short connection uses otherwise
(docs/decisions/038-sockets-of-sessions.md).
"""

import asyncio
import os
import select
from typing import Final

import uvloop

from gateway import clock
from gateway.proxy.next_turns import equal_time
from gateway.proxy.socket_memory import SocketMemory
from gateway.proxy.wire import ChunkWriter

READ: Final = 1
WRITE: Final = 4
PEER_CLOSED: Final = 0x2000
"""EPOLLIN, EPOLLOUT and EPOLLRDHUP. epoll adds its bits for errors and ends by itself."""

MAX_EVENTS: Final = 8
"""The sockets that are served before the event loop looks at its timers and at busy sockets again. With 128, the TLS handshakes
of a crowd delayed all other clients by up to 0.6 s. The kernel reports first those that wait longest.

If more wait for several turns, they get as much CPU time as the rest of the event loop took since the turn before. Otherwise
each busy socket would have a read in every turn, and all others together eight."""


class PolledSocket(ChunkWriter):
    """A socket that a `Poller` watches. `events` are the bits that it waits for; `direct` if the event loop watches it."""

    __slots__ = ("direct", "events", "fd")

    def __init__(self, fd: int) -> None:
        self.events = 0
        self.direct = False
        self.fd = fd

    def ready(self, events: int) -> None:
        """Serve the socket, as some of its events have come. Must not raise."""
        raise NotImplementedError

    def readable(self) -> None:
        """As `ready(READ)`, for the event loop."""
        raise NotImplementedError

    def finish(self) -> None:
        """Close the socket. Called once, after `Poller.end`. Must not raise."""
        raise NotImplementedError


class Poller:
    """The epoll of one event loop, and the `memory` of its sockets."""

    __slots__ = ("_crowded_at", "_ended", "_epoll", "_loop", "_polling", "_sockets", "memory")

    def __init__(self) -> None:
        self.memory = SocketMemory()
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._sockets: dict[int, PolledSocket] = {}
        self._ended: list[PolledSocket] = []
        self._polling = False
        self._crowded_at = -1.0
        """The thread's CPU time (s) at the end of the last turn, if sockets may have waited then; otherwise -1."""
        self._loop.add_reader(self._epoll.fileno(), self._poll)

    def close(self) -> None:
        """Watch no socket any more. The sockets stay open."""
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def watch(self, polled: PolledSocket, events: int) -> None:
        """Wait for these events from now on, or for none. Raises OSError if the kernel has no room for another socket."""
        if events == polled.events:
            return
        fd = polled.fd
        if polled.direct:
            self._loop.remove_reader(fd)
            polled.direct = False
        if not events:
            # epoll would report errors of a socket that waits for nothing, again and again.
            self._epoll.unregister(fd)
            del self._sockets[fd]
        elif polled.events:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
            self._sockets[fd] = polled
        polled.events = events

    def hand_over(self, polled: PolledSocket) -> None:
        """Let the event loop itself watch a socket that waits for READ, until that changes.

        This saves a look at the epoll for each event, but costs several times as much as `watch` once. The epoll still reports
        errors and the end of the connection: after an error, uvloop would watch the socket no more, read or not.
        """
        self._epoll.modify(polled.fd, 0)
        polled.direct = True
        self._loop.add_reader(polled.fd, polled.readable)

    def end(self, polled: PolledSocket) -> None:
        """Watch the socket no more, and have it finished soon, but not from within this call.

        Until then its descriptor is open, so that no other socket gets the same number, and the events of the old one.
        """
        if polled.direct:
            self._loop.remove_reader(polled.fd)
            polled.direct = False
        if polled.events:
            del self._sockets[polled.fd]  # its close takes it out of the epoll
        polled.events = 0
        if self._polling:
            self._ended.append(polled)
        else:
            self._loop.call_soon(polled.finish)

    def _poll(self) -> None:
        self._polling = True
        try:
            full = self._serve() == MAX_EVENTS if self._crowded_at < 0.0 else self._serve_crowd()
            self._crowded_at = clock.busy() if full else -1.0
        finally:
            self._polling = False

    def _serve_crowd(self) -> bool:
        """Serve for as long as the rest of the event loop took since the last turn. True if more sockets may wait."""
        end = equal_time(self._crowded_at)
        while self._serve() == MAX_EVENTS:
            if clock.busy() >= end:
                return True
        return False

    def _serve(self) -> int:
        """Serve the sockets that wait longest; returns their number, at most `MAX_EVENTS`."""
        ready = self._epoll.poll(0, MAX_EVENTS)
        for fd, events in ready:
            polled = self._sockets.get(fd)
            if polled is None:
                continue
            if polled.direct:
                self._take_back(polled)
            polled.ready(events)
        ended = self._ended
        while ended:  # one end of a session ends the other one
            ended.pop().finish()
        return len(ready)

    def _take_back(self, polled: PolledSocket) -> None:
        self._loop.remove_reader(polled.fd)
        polled.direct = False
        self._epoll.modify(polled.fd, polled.events)


def make_poller() -> Poller | None:
    """The poller of the running event loop; None if that loop is not uvloop on Linux, or with WEIR_OWN_TRANSPORTS=0."""
    if os.environ.get("WEIR_OWN_TRANSPORTS") == "0":
        return None
    return Poller() if hasattr(select, "epoll") and isinstance(asyncio.get_running_loop(), uvloop.Loop) else None
