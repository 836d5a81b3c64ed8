"""Closes connections to the admin server that ask for nothing, so that they can't take all open files."""

import asyncio
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler

from gateway import clock, open_files

IDLE_SECONDS: Final = 120.0
"""Prometheus keeps its connection between two scrapes, and most scrapes are a minute apart at most."""

LOOK_SECONDS: Final = 1.0


def most_idle() -> int:
    """Beyond these, the connections that have been idle longest are closed first. Clients leave twice as many files to Weir."""
    return open_files.reserve() // 2


class IdleConnections:
    """The connections of one server, from `started` until `stop`."""

    def __init__(self) -> None:
        self._server: web.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._busy: set[RequestHandler] = set()
        self._idle_since: dict[RequestHandler, float] = {}

    def started(self, server: web.Server) -> None:
        self._server = server
        self._look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that the connection is busy while a request of it is answered."""
        connection = request.protocol
        self._busy.add(connection)
        try:
            return await handler(request)
        finally:
            self._busy.discard(connection)
            self._idle_since[connection] = clock.monotonic()

    def close_idle(self, now: float) -> None:
        """Close the connections that have been idle for too long, or beyond the maximum. `now` is in monotonic seconds."""
        open_now = () if self._server is None else self._server.connections
        idle = [each for each in open_now if each not in self._busy]
        self._idle_since = {each: self._idle_since.get(each, now) for each in idle}
        idle.sort(key=self._idle_since.__getitem__)
        for number, connection in enumerate(idle):
            if len(idle) - number > most_idle() or now - self._idle_since[connection] >= IDLE_SECONDS:
                _cut(connection)

    def _look(self) -> None:
        self.close_idle(clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)


def _cut(connection: RequestHandler) -> None:
    """Close a connection, also if its client does not read the rest of an answer."""
    transport = connection.transport
    connection.force_close()
    if transport is not None:
        transport.abort()
