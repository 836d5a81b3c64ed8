"""Produce under a quota: what it is charged, what its likes look like, and whom the gate of the volumes is for."""

from typing import Final

from gateway.proxy.context import SessionContext
from gateway.proxy.handler import Connection
from gateway.proxy.handlers.paused_produce import PausedProduce
from gateway.proxy.in_flight import Entry, InFlight
from gateway.proxy.produce_inspection import ProduceExchange, Producer
from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import VOLUMES
from gateway.quotas.own_topics import mark_at
from protocol.api_keys import ApiKey
from protocol.bodies import produce, produce_refusal
from protocol.errors import InvalidFrame
from protocol.headers import RequestHeader

# What becomes of a request while producers are paused.
PASSES: Final = 0
REFUSED: Final = 1
PUT_OFF: Final = 2

_PRODUCE: Final = int(ApiKey.PRODUCE)
_TIMEOUT_BYTES: Final = 4


class Produces:
    """The Produce requests of one connection.

    They are alike up to their length and correlation id. So the first one is parsed, and the next ones are only compared with
    it: `key` is API key and version, `rest` all that stands from the client-id to the end of acks, `min_bytes` the
    least that a request with that has. `answered` is whether they get an answer, and `generation` the engine's at which the
    client's `hot_bucket` was found. `own` are the bytes behind the timeout of those to a topic of Weir's own alone, which are
    charged elsewhere, and `own_bytes` the most of them behind acks that have to be there to see that. `own_marks` has 1 for
    each byte that such a request may have at `own_mark_at` behind acks.
    """

    __slots__ = (
        "_client",
        "_connection",
        "_gate",
        "_in_flight",
        "_internal",
        "_own_topics",
        "_producer",
        "_throttle",
        "_topics",
        "answered",
        "arriving",
        "entry",
        "generation",
        "key",
        "min_bytes",
        "own",
        "own_bytes",
        "own_mark_at",
        "own_marks",
        "rest",
        "size",
    )

    def __init__(self, connection: Connection, context: SessionContext, in_flight: InFlight) -> None:
        self._connection = connection
        self._client = connection.client
        self._throttle = connection.throttle
        self._gate = context.gate
        self._topics = context.topics
        self._own_topics = context.own_topics
        self._internal = context.engine.internal
        self._in_flight = in_flight
        self._producer: Producer | None = None  # who looks at the topics of this connection's requests
        self.key = -1
        self.rest = b""
        self.min_bytes = 0
        self.own: tuple[bytes, ...] = ()
        self.own_bytes = 0
        self.own_marks = b""
        self.own_mark_at = 0
        self.answered = True
        self.generation = -1
        # The request of which more is to come, until all of it is charged: its bucket, its entry (None: acks=0), its length.
        self.arriving: Bucket | None = None
        self.entry: Entry | None = None
        self.size = 0

    def charge(self, data: bytes, header: RequestHeader, after: int, size: int, now: float) -> Entry | None:
        """Charge what has arrived of a Produce request, and remember the template for the next ones.

        The entry is None if the request gets no answer (acks=0). A length that a header claims costs nothing: the rest is
        charged as it arrives (`arrived`).
        """
        acks, acks_end = produce.peek_acks(data, header.body_offset, min(after, len(data)), header.api_version)
        if acks_end > after:
            raise InvalidFrame("overrun", f"a Produce request of {size} bytes ends before its acks")
        self._client.use(header.client_id, now)
        gated = self._gate.closed and self._is_gated(data, header, acks_end, after)
        own = self._is_own(data, header, acks_end, after)
        # A free request is not the client's first one of its bucket: the next one has to wait for a debt as before.
        free = own and self._own_topics.free(size, now)
        bucket = self._internal if free else self._client.bucket("produce", now)
        head = after - size - 4
        key = _PRODUCE << 16 | header.api_version
        self.key = key
        self.rest = data[head + 12 : acks_end]
        self.min_bytes = acks_end - head - 4
        self.answered = acks != 0
        self.generation = self._client.generation
        own_prefixes = self._own_topics.prefixes(header.api_version)
        if own_prefixes != self.own:
            self.own = own_prefixes
            self.own_bytes = _TIMEOUT_BYTES + max([len(prefix) for prefix in own_prefixes], default=-_TIMEOUT_BYTES)
            self.own_marks = self._own_topics.marks(header.api_version)
            self.own_mark_at = mark_at(header.api_version) + _TIMEOUT_BYTES
        looked_at = own or self._gate.closed or self.by_topic or self._connection.gate is not None
        self._client.hot_bucket = None if looked_at else bucket  # None: the next one is looked at too
        entry: Entry | None = None
        if acks != 0:
            entry = Entry(header.correlation_id, key, now, None, bucket)
            self._in_flight.append(entry)
        if after > len(data):
            self.begin(bucket, entry, size, len(data) - head - 4, now)
        else:
            delay, enforced = bucket.charge(size, now)
            if delay > 0.0:
                self._throttle.start((delay, enforced), now, bucket, entry, size)
        if gated:
            held = self._gate.delayed()
            self._throttle.note_held(held, now, bucket, size)
            self._throttle.hold(held, now, bucket, entry)
        return entry

    def begin(self, bucket: Bucket, entry: Entry | None, size: int, amount: int, now: float) -> None:
        """A request of `size` bytes has begun to arrive, with its first `amount` bytes."""
        self.arriving, self.entry, self.size = bucket, entry, size
        bucket.record(amount, now)

    def arrived(self, bucket: Bucket, amount: int, now: float, *, whole: bool) -> None:
        """Charge the next `amount` bytes of the request that is `arriving`; with the last of them (`whole`) it may go over."""
        if not whole:
            bucket.record(amount, now)
            return
        delay, enforced = bucket.charge(amount, now)
        if delay > 0.0:
            entry = self.entry
            # A broker may answer a request before all of it has arrived. No response is left then that could end the mute.
            pending = entry is not None and self._in_flight and self._in_flight[-1] is entry
            self._throttle.start((delay, enforced), now, bucket, entry if pending else None, self.size)
        self.arriving = self.entry = None

    @property
    def by_topic(self) -> bool:
        """Whether the topics of Produce requests are looked at."""
        return self._topics.opener is not None or (self._producer is not None and self._producer.pending)

    def open_by_topic(self, header: RequestHeader, pos: int, after: int, now: float) -> ProduceExchange:
        """Begin to look at the topics of the request from `pos` to `after`."""
        if self._producer is None and self._topics.opener is not None:
            self._producer = self._topics.opener(self._connection)
        assert self._producer is not None  # noqa: S101 -- else nobody looks
        return self._producer.open(header, header.body_offset - pos, after - pos, now)

    def while_paused(self, data: bytes, header: RequestHeader, after: int, now: float) -> int:
        """Decide on a request while producers are paused. A request that wants no answer is put off, and its client muted:
        its client would not learn that the request was refused."""
        acks, acks_end = produce.peek_acks(data, header.body_offset, min(after, len(data)), header.api_version)
        self._client.use(header.client_id, now)
        if not self._is_gated(data, header, acks_end, after):
            return PASSES
        if acks != 0:
            return REFUSED
        bucket = self._client.bucket("produce", now)
        # It is looked at again when the time is over, and its bytes are told of then, by whatever becomes of it.
        delay = self._gate.put_off()
        self._throttle.note_held(delay, now, bucket, amount=0)
        self._throttle.hold(delay, now, bucket, None)
        return PUT_OFF

    def refusal(self, connection: Connection) -> PausedProduce:
        """Make the exchange that refuses a Produce request."""
        return PausedProduce(self._gate, connection)

    def mute_refused(self, now: float) -> None:
        """Mute the client whose Produce requests were refused; without effect once the pause is over."""
        if self._gate.paused:
            self._throttle.hold(self._gate.delay, now, self._client.bucket("produce", now), None)

    def wants_no_answer(self, data: bytes, header: RequestHeader, after: int, now: float) -> bool:
        """Whether it is a Produce request that its client takes for done once it is sent, and that its broker may have."""
        if header.api_key != _PRODUCE or self._connection.gate is not None:
            return False
        acks, acks_end = produce.peek_acks(data, header.body_offset, min(after, len(data)), header.api_version)
        if acks != 0 or not self._gate.paused:
            return acks == 0
        self._client.use(header.client_id, now)
        return not self._is_gated(data, header, acks_end, after)

    def is_own_at(self, chunk: bytes, acks_end: int) -> bool:
        """Return True if the request whose acks end there is for a topic of Weir's own alone. For requests with `own_bytes`."""
        return chunk.startswith(self.own, acks_end + _TIMEOUT_BYTES)

    def is_free(self, data: bytes, header: RequestHeader, after: int, size: int, now: float) -> bool:
        """Return True if a Produce request is charged to nobody, because its only topic is one of Weir's own."""
        if not self._own_topics.keys:
            return False
        _, acks_end = produce.peek_acks(data, header.body_offset, min(after, len(data)), header.api_version)
        return self._is_own(data, header, acks_end, after) and self._own_topics.has_room(size, now)

    def _is_gated(self, data: bytes, header: RequestHeader, acks_end: int, after: int) -> bool:
        """Whether the gate is for this Produce request."""
        return not self._client.exempt_from(VOLUMES) and not self._is_own(data, header, acks_end, after)

    def _is_own(self, data: bytes, header: RequestHeader, acks_end: int, after: int) -> bool:
        """Return True if the only topic of this Produce request is one of Weir's own."""
        if not self._own_topics.keys:
            return False
        topic = produce_refusal.only_topic(data, acks_end, min(after, len(data)), after, header.api_version)
        return self._own_topics.is_own(topic)
