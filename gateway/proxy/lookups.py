"""Requests of Weir's own that a handler waits for, before it decides on its client's request."""

from collections.abc import Callable

from gateway.proxy.handler import Connection


class Lookups:
    """The requests of one handler. `pending` counts those without an answer; the handler returns WAIT meanwhile."""

    __slots__ = ("_connection", "pending")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.pending = 0

    def send(self, request: bytes, take: Callable[[bytes, float], None], now: float) -> None:
        """Send a request on the client's connection. `take` gets the answer, and may send further ones.

        The connection becomes ready after the last answer. If it ends first, there is no callback.
        """

        def took(answer: bytes, then: float) -> None:
            self.pending -= 1
            take(answer, then)
            if self.pending == 0:
                self._connection.ready()

        self.pending += 1
        self._connection.send_own_request(request, took, now)
