"""Finds the handler of a request, and asks it for a verdict."""

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
            handler = self._handler_of(request)
            if handler is None:
                return FORWARD
        request.cost += HANDLER_COST
        verdict = handler.handle(request, now)
        if verdict is WAIT:
            self._waiting = handler
        return verdict

    def _handler_of(self, request: Request) -> RequestHandler | None:
        # A request that waits for a quota is charged even if the quota has just been removed: its wait ends so.
        charging = self._engine.charges_requests or self._client.queued
        factory = (self._charging_handlers if charging else self._handlers).get(request.header.api_key)
        return None if factory is None else factory(self._connection)
