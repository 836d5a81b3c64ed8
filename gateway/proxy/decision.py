"""Finds the handler of a request, and asks it for a verdict."""

from typing import Final

from gateway.proxy.context import SessionContext
from gateway.proxy.handler import (
    DEFER,
    FORWARD,
    HANDLER_COST,
    WAIT,
    Connection,
    Request,
    RequestHandler,
    Verdict,
)
from gateway.proxy.response_bodies import REWRITES
from protocol.api_keys import ApiKey

MAX_OPENED: Final = 64
"""Weir opens the answer to a request of `_OPENED` only if so many others are unanswered at most.

An answer takes 20 us, and all that come in one read are opened in one turn of the event loop. Clients rarely ask for several.
"""

_OPENED: Final = frozenset([key for key in REWRITES if key != ApiKey.PRODUCE])


class Decision:
    """The decisions on one connection's requests. Keeps the handler that waits before it can decide.

    A request without a handler is forwarded.
    """

    __slots__ = ("_charging_handlers", "_client", "_connection", "_engine", "_handlers", "_throttle", "_waiting")

    def __init__(self, context: SessionContext, connection: Connection) -> None:
        self._engine = context.engine
        self._handlers = context.handlers
        self._charging_handlers = context.charging_handlers
        self._connection = connection
        self._client = connection.client
        self._throttle = connection.throttle
        self._waiting: RequestHandler | None = None

    def decide(self, request: Request, now: float) -> Verdict:
        """Decide the request. After WAIT, the next call is for the same request. Raises EndConnection, ProtocolError."""
        connection = self._connection
        gate = connection.authentication_gate
        if gate is not None:
            if not gate.admit(request.header.api_key, request.size):
                return DEFER
            if gate.required is False and (not connection.admit_user(request.header.api_key, now) or self._throttle.active):
                return DEFER
        handler, self._waiting = self._waiting, None
        if handler is None:
            if (
                connection.due.unanswered > MAX_OPENED
                and request.header.api_key in _OPENED
                and connection.waits_for_answers(now)
            ):
                return DEFER
            handler = self._handler_of(request)
            if handler is None:
                return FORWARD
        request.cost += HANDLER_COST
        before = self._client.client_id
        verdict = handler.handle(request, now)
        if self._client.client_id is not before:
            request.cost += self._engine.groups.rules
        if verdict is WAIT:
            self._waiting = handler
        return verdict

    def _handler_of(self, request: Request) -> RequestHandler | None:
        # A request that waits for a quota is charged even if the quota has just been removed: its wait ends so.
        charging = self._engine.charges_requests or self._client.place.queued
        factory = (self._charging_handlers if charging else self._handlers).get(request.header.api_key)
        return None if factory is None else factory(self._connection)
