"""One client connection and its broker connection, without I/O: bytes and times in, calls of a `Wire` out."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from gateway.proxy.channel_throttle import ChannelThrottle
from gateway.proxy.context import SessionContext
from gateway.proxy.fast_path import FastPath
from gateway.proxy.handler import Connection, EndConnection, InterceptedRequest, OwnAnswer
from gateway.proxy.handlers.fetch import FetchHandler, ShareFetchHandler
from gateway.proxy.handlers.produce import ProduceHandler
from gateway.proxy.identity import Client
from gateway.proxy.in_flight import ChargedFetch, Entry, InFlight, OwnRequest, TakeAnswer
from gateway.proxy.request_stream import RequestStream
from gateway.proxy.response_stream import ResponseStream
from gateway.proxy.sessions import ConnectionFacts
from gateway.proxy.wire import NO_API, ChunkWriter, Data, Slot, Wire
from gateway.quotas.entity import VOLUMES, short_name
from protocol.api_keys import ApiKey


def _outlives_client(entry: Entry) -> bool:
    """True if the broker's answer counts although the client has gone: it has the results for topics."""
    special = entry.special
    if isinstance(special, OwnRequest):
        return special.outlives_client
    return isinstance(special, InterceptedRequest) and (special.lose is not None or entry.api_key == ApiKey.PRODUCE)


class _Nobody(ChunkWriter):
    """Takes the answers to a client that has gone."""

    def write(self, data: Data) -> None:
        pass


_NOBODY: Final = _Nobody()


class SessionCore:
    """Joins the two directions. The client's bytes go straight to `requests.feed`.

    All times are monotonic seconds; any call may raise ProtocolError, which ends the session.
    """

    __slots__ = ("_produce", "client", "connection", "in_flight", "requests", "responses", "throttle")

    def __init__(self, wire: Wire, context: SessionContext, slot: Slot | None = None) -> None:
        # mypyc stores attributes in this order: those of the hot path come first (docs/decisions/040-cache-lines.md).
        self.responses: ResponseStream
        self.requests: RequestStream
        self.connection: Connection
        self.throttle: ChannelThrottle
        self.in_flight: InFlight = deque()
        self.client = Client(context.engine)
        self.throttle = ChannelThrottle(wire, context.counters, context.recorder, context.produce_gate)
        fetch = FetchHandler(self.client, self.throttle)
        self.responses = ResponseStream(wire, context, self.throttle, self.in_flight, fetch)
        self.connection = connection = Connection(
            self.client,
            self.throttle,
            wire,
            self._send_own_request,
            self.responses,
            self.responses.held.keep,
            context.authentication_gate,
        )
        fast_path = FastPath(
            self.client,
            self.throttle,
            self.in_flight,
            context.counters.requests,
            context.own_topics,
            context.max_frame_bytes,
        )
        self._produce = produce = ProduceHandler(wire, connection, context, fast_path)
        connection.slot = slot
        connection.produce, connection.fetch = produce, fetch
        connection.share_fetch = ShareFetchHandler(self.client, self.throttle, fetch)
        self.requests = RequestStream(wire, context, connection, self.in_flight, self.responses, fast_path, produce)
        self.responses.held.evict = self.requests.collected.evict = produce.gaps.evict = wire.make_room

    def begin(self, now: float) -> None:
        """Check the limits of the client's user, unless the client still has to authenticate."""
        gate = self.connection.authentication_gate
        if gate is None or gate.required is False:
            self.connection.admit_user(NO_API, now)
            if self.throttle.active:
                self.requests.pause_where_muted()

    def broker_data(self, chunk: bytes, now: float) -> None:
        """Take the broker's next bytes. The caller calls `follow_up` next."""
        self.responses.feed(chunk, now)

    def follow_up(self, now: float) -> None:
        """Go on with the client if the broker's answers allow it. An error raised here is the client's doing.

        Raises EndConnection for `Connection.end`.
        """
        connection = self.connection
        if connection.ending:
            why, connection.ending = connection.ending, ""
            raise EndConnection(why)
        responses = self.responses
        if responses.held.counted:
            responses.held.settle(unread=self.requests.client_full)
        if responses.resumable or self.requests.crowded:
            responses.resumable = False
            self.requests.resume(now)
        if self.throttle.active:
            self.requests.pause_where_muted()

    def client_reads(self, now: float) -> None:
        """Take the client's requests again, as it has read its responses."""
        self.responses.held.read()
        self.requests.client_reads(now)
        if self.throttle.active:
            self.requests.pause_where_muted()

    def wake(self, now: float) -> None:
        """Go on, as the time of `Wire.wake_at` has come."""
        if self.throttle.wake(now):
            self.requests.resume(now)

    def reconsider(self, now: float) -> None:
        """Look at the mute again, as the quotas have changed and perhaps the client's buckets with them."""
        kinds = self.throttle.kinds
        if kinds:
            self.client.use(self.client.client_id, now)
            buckets = {kind: self.client.buckets(kind, now) for kind in kinds}
            self.throttle.reconsider(now, buckets, gated=not self.client.exempt_from(VOLUMES))

    def find_room(self, now: float) -> None:
        """As `Client.find_room`. A mute for the shared bucket is shortened to what the client's own one requires."""
        if self.client.find_room(now):
            self.reconsider(now)

    def ready(self, now: float) -> None:
        """Ask the waiting handler again."""
        self.requests.resume(now, ready=True)
        if self.throttle.active:
            self.requests.pause_where_muted()

    def facts(self, begun: float, transferred: tuple[int, int], now: float) -> ConnectionFacts:
        """The connection for operators. It began at `begun`; `transferred` are bytes of the client and to the client."""
        connection, throttle = self.connection, self.throttle
        return ConnectionFacts(
            user=short_name(self.client.user),
            client_id=short_name(self.client.client_id),
            software_name=connection.software[0],
            software_version=connection.software[1],
            address=connection.peer,
            listener="" if connection.slot is None else connection.slot.listener,
            broker=throttle.origin.broker,
            begun=begun,
            received_bytes=transferred[0],
            sent_bytes=transferred[1],
            throttled_by=throttle.cause,
            throttle_left=max(0.0, throttle.until - now) if throttle.active else 0.0,
            group=self.client.group,
        )

    @property
    def idle(self) -> bool:
        """True if every request that has begun is answered."""
        return not self.in_flight and not self.responses.unfinished and self.requests.at_boundary

    @property
    def reusable(self) -> bool:
        """True if the broker's connection may serve another client, as this one has gone."""
        return self.idle and self.responses.reuse.allowed

    def half_close(self, now: float) -> bool:
        """Answer nothing any more, if every request that has begun is answered; else return False and change nothing."""
        if not self.idle:
            return False
        self.requests.half_close(now)
        return True

    def _send_own_request(self, frame: bytes, take: TakeAnswer, now: float) -> None:
        self.requests.send_own_request(frame, take, now)

    def _is_owed(self, expected: Iterable[Entry]) -> bool:
        """True if one of the expected answers, or the one that has begun, counts although the client has gone."""
        current = self.responses.current
        if current is not None and _outlives_client(current):
            return True
        return any(_outlives_client(entry) for entry in expected)

    @property
    def owed(self) -> bool:
        """True, after `close`, as long as an answer of the broker still counts."""
        return self._is_owed(self.in_flight)

    def lose(self, now: float) -> None:
        """The broker's connection has ended: it answers no further request."""
        current = self.responses.current
        for entry in self.in_flight if current is None else (current, *self.in_flight):
            if isinstance(entry.special, InterceptedRequest) and entry.special.lose is not None:
                entry.special.lose(now)

    def close(self, now: float) -> None:
        """The client has gone. `in_flight` keeps requests only if one of their answers still counts."""
        for entry in self.in_flight:
            if isinstance(entry.special, ChargedFetch):
                entry.special.release()
        expected = [entry for entry in self.in_flight if not isinstance(entry.special, OwnAnswer)]
        if self._produce.scans and expected:
            expected.pop()  # the rest of this request never comes, so the broker does not answer it
        self.in_flight.clear()
        if self._is_owed(expected):
            for entry in expected:
                entry.buckets = ()
                if not _outlives_client(entry):
                    entry.special = None
            self.in_flight.extend(expected)
        self.responses.writer = _NOBODY
        self.responses.held.close()
        self._produce.gaps.close()
        self.connection.close()
        self.requests.close()
        self.throttle.abandon()
        self.client.leave(now)

    def end(self) -> None:
        """Drop all requests without a whole answer. They may refer to the whole session: a cycle for the garbage collector."""
        self.in_flight.clear()
        self.responses.end()
