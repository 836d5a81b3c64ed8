"""The reasons for which a connection takes no further request now."""

from gateway.proxy.collected import HeldAnswers
from gateway.proxy.handler import Connection
from gateway.proxy.in_flight import MAX_IN_FLIGHT, MAX_OWN_BYTES, InFlight
from gateway.proxy.states import CLIENT_UNREAD, IN_FLIGHT, MUTED, RequestState
from gateway.proxy.wire import Wire


class Pauses:
    """Looks at the mute, the requests in flight and the waiting answers of one connection."""

    __slots__ = ("_direction", "_held", "_in_flight", "_throttle", "_wire")

    def __init__(self, wire: Wire, connection: Connection, in_flight: InFlight, held: HeldAnswers) -> None:
        self._wire = wire
        self._direction = connection.direction
        self._throttle = connection.throttle
        self._in_flight = in_flight
        self._held = held

    @property
    def must_hold(self) -> bool:
        """True if no request may be taken now."""
        if self._direction.open:
            return self._throttle.active or self.crowded(MAX_IN_FLIGHT)
        state = self._direction.state
        if state is RequestState.HALF_CLOSED or state is RequestState.DRAINING_WAITING:
            return False
        waits = self._throttle.active or bool(self._direction.reasons & CLIENT_UNREAD) or self.crowded(MAX_IN_FLIGHT)
        return waits or state is RequestState.DRAINING or state is RequestState.CLOSED

    def crowded(self, most: int) -> bool:
        return len(self._in_flight) > most or self._held.waiting > MAX_OWN_BYTES

    def pause_where_due(self) -> None:
        """At the end of a request: note the reasons that hold now, and stop reading the client if it is to wait."""
        direction = self._direction
        reasons = direction.reasons | MUTED if self._throttle.active else direction.reasons & ~MUTED
        if self.crowded(MAX_IN_FLIGHT):
            reasons |= IN_FLIGHT
        direction.pause(reasons)
        if not direction.open:
            self._wire.pause_client()
