"""One client connection and its broker connection, without I/O: bytes and times in, calls of a `Wire` out."""

from collections import deque

from gateway.proxy.channel_throttle import ChannelThrottle
from gateway.proxy.context import SessionContext
from gateway.proxy.handler import Connection
from gateway.proxy.handlers.fetch import Fetches
from gateway.proxy.identity import Client
from gateway.proxy.in_flight import ChargedFetch, InFlight, Take
from gateway.proxy.request_stream import STOP_IN_FLIGHT, RequestStream
from gateway.proxy.response_stream import ResponseStream
from gateway.proxy.wire import Wire


class SessionCore:
    """Joins the two directions. What the client sends goes straight to `requests.feed`.

    All times are monotonic seconds; any call may raise ProtocolError, which ends the session.
    """

    __slots__ = ("client", "connection", "in_flight", "requests", "responses", "throttle")

    def __init__(self, wire: Wire, context: SessionContext) -> None:
        self.in_flight: InFlight = deque()
        self.client = Client(context.engine)
        self.throttle = ChannelThrottle(wire, context.counters, context.recorder, context.gate)
        fetches = Fetches(self.client, self.throttle, self.in_flight)
        self.responses = ResponseStream(wire, context, self.throttle, self.in_flight, fetches)
        gate = context.authentication_gate
        self.connection = Connection(self.client, self.throttle, wire.call_ready, self._ask, gate)
        self.requests = RequestStream(wire, context, self.connection, self.in_flight, self.responses, fetches)

    def broker_data(self, chunk: bytes, now: float) -> None:
        """The broker has sent `chunk`. To be followed by `follow_up`."""
        self.responses.feed(chunk, now)

    def follow_up(self, now: float) -> None:
        """Go on with the client where the broker's answers allow it; what is wrong here is the client's doing."""
        responses = self.responses
        if responses.resumable or self.requests.stops & STOP_IN_FLIGHT:
            responses.resumable = False
            self.requests.go_on(now)
        if self.throttle.active:
            self.requests.hold_back()

    def client_reads(self, now: float) -> None:
        """The client has read what was waiting for it: take its requests again."""
        self.requests.client_full = False
        self.requests.go_on(now)
        if self.throttle.active:
            self.requests.hold_back()

    def wake(self, now: float) -> None:
        """The time that `Wire.wake_at` was told has come."""
        if self.throttle.wake(now):
            self.requests.go_on(now)

    def reconsider(self, now: float) -> None:
        """Look at the mute again: the quotas have changed, and perhaps the bucket that holds for the client with them."""
        kind = self.throttle.kind
        if kind is not None:
            self.client.follow(now)
            self.throttle.reconsider(now, self.client.bucket(kind, now))

    def ready(self, now: float) -> None:
        """Some exchange can go on: its request can be decided."""
        self.requests.go_on(now, ready=True)
        if self.throttle.active:
            self.requests.hold_back()

    @property
    def idle(self) -> bool:
        """Whether everything that was begun is answered."""
        return not self.in_flight and not self.responses.unfinished and self.requests.at_boundary

    def part(self, now: float) -> bool:
        """Take leave, if all that was begun is answered; until then nothing changes. See `RequestStream.part`."""
        if not self.idle:
            return False
        self.requests.part(now)
        return True

    def _ask(self, frame: bytes, take: Take, now: float) -> None:
        self.requests.ask(frame, take, now)

    def close(self, now: float) -> None:
        """The session is over."""
        for entry in self.in_flight:
            if isinstance(entry.special, ChargedFetch):
                entry.special.keep_promise()
        self.in_flight.clear()
        if self.connection.on_close is not None:
            self.connection.on_close()
        self.requests.abandon()
        self.throttle.abandon()
        self.client.leave(now)
