"""What a client sends: split into requests, measured, and passed on to its broker as it came.

The chunk that was read goes on in one piece wherever it can. Fetch requests of clients with a quota are changed (their
limits lowered), and throttled ones are answered here or reduced to nearly nothing. The rare requests for which the context has
an opener are collected whole and given to their exchange.
"""

from typing import Final

from librt.strings import read_i32_be

from gateway.quotas.bucket import Bucket
from gateway.session.context import SessionContext
from gateway.session.exchange import MAX_OPENED_BYTES, MAX_RAW_BYTES, Connection, Exchange, Opened, Opener, TakeRaw
from gateway.session.fetches import Fetches
from gateway.session.inflight import Asked, ChargedFetch, Entry, InFlight, Take
from gateway.session.produced import EndConnection, ProduceExchange, Producer
from gateway.session.responses import ResponseStream
from gateway.session.wire import Wire, Write
from protocol.api_keys import APIS, ApiKey
from protocol.bodies import produce, produce_refusal
from protocol.cursor import LENGTH_BYTES
from protocol.errors import Incomplete, InvalidFrame
from protocol.framing import MIN_REQUEST_BYTES, Framing
from protocol.headers import RequestHeader, parse_request_header

MAX_IN_FLIGHT: Final = 1024
"""A client with so many unanswered requests is not read until half of them are answered. Brokers take one at a time."""

_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
_SHARE_FETCH: Final = int(ApiKey.SHARE_FETCH)
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_SASL_AUTHENTICATE: Final = int(ApiKey.SASL_AUTHENTICATE)
_SASL_TOKEN: Final = _SASL_AUTHENTICATE << 16
_UNKNOWN_VERSION: Final = b"\x7f\xff"


# Why the client is not read. Plain ints, as they are looked at for each chunk.
STOP_MUTED: Final = 1
STOP_IN_FLIGHT: Final = 2
STOP_NOT_READY: Final = 4


class RequestStream:
    """The direction from the client to its broker."""

    __slots__ = (
        "_client",
        "_collected",
        "_connection",
        "_counts",
        "_discarding",
        "_engine",
        "_fetches",
        "_framing",
        "_gate",
        "_held",
        "_hot_answered",
        "_hot_generation",
        "_hot_key",
        "_hot_min",
        "_hot_rest",
        "_in_flight",
        "_irregular",
        "_max_bytes",
        "_openers",
        "_producer",
        "_put_off",
        "_responses",
        "_scanned",
        "_throttle",
        "_topics",
        "_waits_for",
        "_wire",
        "stops",
        "write",
    )

    def __init__(
        self,
        wire: Wire,
        context: SessionContext,
        connection: Connection,
        in_flight: InFlight,
        responses: ResponseStream,
        fetches: Fetches,
    ) -> None:
        self._wire = wire
        self._engine = context.engine
        self._counts = context.counters.requests
        self._max_bytes = context.max_frame_bytes
        self._openers = context.openers
        self._gate = context.gate
        self._topics = context.topics
        self._producer: Producer | None = None  # who looks at the topics of this connection's requests
        self._scanned: ProduceExchange | None = None  # whose request is passing by
        self._connection = connection
        self._client = connection.client
        self._throttle = connection.throttle
        self._in_flight = in_flight
        self._responses = responses
        self._fetches = fetches
        self.write: Write = wire.write_broker
        self._framing = Framing(min_bytes=MIN_REQUEST_BYTES, max_bytes=context.max_frame_bytes)
        self._discarding = False
        self._held = b""
        self._collected = bytearray()  # the beginning of a request that is to be opened
        self._waits_for: Exchange | None = None  # whose request stands at the beginning of what is held
        self._put_off = False  # the request that stands there has to wait for something else
        self.stops = 0
        self._irregular = False  # bytes are held, or are not to be forwarded
        # A connection's Produce requests are alike up to their length and correlation id. So the first one is parsed, and the
        # next ones are only compared with it: key and version, and all that stands from the client-id to the end of acks.
        self._hot_key = -1
        self._hot_rest = b""
        self._hot_min = 0
        self._hot_answered = True
        self._hot_generation = -1

    def feed(self, chunk: bytes, now: float) -> None:
        """Take the next bytes of the client. Raises ProtocolError, after which the connection is to be closed."""
        framing = self._framing
        pos = framing.skip
        bucket = self._client.hot_bucket
        if self._irregular or bucket is None or self._throttle.active or self._hot_generation != self._engine.generation:
            self._feed_any(chunk, now)
            return
        end = len(chunk)
        rest = self._hot_rest
        rest_end = 12 + len(rest)
        while end - pos >= rest_end:
            size = read_i32_be(chunk, pos)
            if (
                read_i32_be(chunk, pos + 4) != self._hot_key
                or not self._hot_min <= size <= self._max_bytes
                or chunk[pos + 12 : pos + rest_end] != rest
            ):
                break
            delay = bucket.charge(size, now)
            entry: Entry | None = None
            if self._hot_answered:
                entry = Entry(read_i32_be(chunk, pos + 8), self._hot_key, now, None, bucket)
                self._in_flight.append(entry)
            self._counts[_PRODUCE] += 1
            pos += 4 + size
            if delay != 0.0:
                self._throttle.start(delay, now, bucket, entry, size)
                break
        if pos < end or self._throttle.active or len(self._in_flight) > MAX_IN_FLIGHT:
            self._go_through(chunk, 0, pos, now)
        else:
            framing.skip = pos - end
            self.write(chunk)

    def _feed_any(self, chunk: bytes, now: float) -> None:
        """The same, whatever state the stream is in."""
        if self._held:  # stopped, and yet more came: what the event loop had read already
            self._held += chunk
            return
        framing = self._framing
        if self._scanned is not None:
            self._scanned.scan(chunk, 0, min(framing.skip, len(chunk)), now)
            if framing.skip <= len(chunk):
                self._scanned = None
        if self._collected:
            missing = framing.skip
            self._collected += memoryview(chunk)[:missing]
            if len(chunk) < missing:
                framing.skip -= len(chunk)
                return
            chunk = bytes(self._collected) + chunk[missing:]
            self._collected = bytearray()
            framing.skip = 0
        chunk = framing.join(chunk)
        pos = framing.skip
        start = min(pos, len(chunk)) if self._discarding else 0
        if pos <= len(chunk):
            self._discarding = False
        self._go_through(chunk, start, pos, now)

    def _go_through(self, data: bytes, start: int, pos: int, now: float) -> None:
        """Take the requests that begin in `data` from `pos` on, and forward it from `start` on."""
        framing = self._framing
        end = len(data)
        while pos < end:
            if self._throttle.active:
                self._held = data[pos:]
                break
            if self._connection.raw is not None and end - pos >= LENGTH_BYTES:
                start, pos = self._take_raw(self._connection.raw, data, start, pos, now)
                continue
            if end - pos < 12:
                framing.hold(data, pos)
                break
            size = read_i32_be(data, pos)
            framing.check(size)
            after = pos + 4 + size
            try:
                header = parse_request_header(data, pos + 4, min(after, end), after)
                data, start = self._take(data, header, start, pos, after, now)
            except Incomplete:
                if after <= end:
                    raise InvalidFrame("overrun", f"a request of {size} bytes ends inside its own head") from None
                framing.hold(data, pos)
                break
            if self._waits_for is not None or self._put_off:
                self._held = data[pos:]
                break
            if not self._collected:  # else it is counted when it is there
                self._counts[header.api_key] += 1
            pos = after
        framing.skip = max(pos - end, 0)
        pos = min(pos, end)
        if pos > start:
            self.write(data if start == 0 and pos == end else data[start:pos])
        if not framing.skip:  # a request is never cut in the middle
            if self._throttle.active:
                self._stop(STOP_MUTED)
            if self._waits_for is not None or (self._put_off and not self._throttle.active):
                self._stop(STOP_NOT_READY)
            if len(self._in_flight) > MAX_IN_FLIGHT:
                self._stop(STOP_IN_FLIGHT)
        self._irregular = bool(self._held or framing.head or self._discarding or self._collected)

    def _take(self, data: bytes, header: RequestHeader, start: int, pos: int, after: int, now: float) -> tuple[bytes, int]:
        """Take the request at `pos`; returns the data, perhaps changed, and from where on it is still to be forwarded."""
        if self._connection.gate is not None:
            self._connection.gate.admit(header.api_key, after - pos - LENGTH_BYTES)
        refused = header.api_key == _PRODUCE and self._gate.paused and self._refuse(data, header, after, now)
        # What the broker answers can't wait here for an answer that is not there yet, so nothing more is asked of it.
        self._put_off = self._put_off or (self._responses.late > 0 and not refused)
        if self._put_off:
            return data, start
        if header.api_key == _FETCH:
            data, forward = self._fetches.admit(data, header, after, now)
            if not forward:
                start = self._forward_without(data, start, pos, after)
                self._responses.answer_own(now)
            return data, start
        if header.api_key == _PRODUCE and not refused:
            if self._by_topic:
                return data, self._produce_by_topic(data, header, start, pos, after, now)
            self._produce(data, header, after, after - pos - 4, now)
            return data, start
        exchange = self._exchange(self._gate.refusal if refused else self._openers.get(header.api_key))
        if exchange is None:
            return self._other(data, header, pos, now), start
        start = self._forward_without(data, start, pos, after)
        if after > len(data):
            self._discarding = False
            if not refused and after - pos > MAX_OPENED_BYTES:
                raise InvalidFrame("frame_too_large", f"{after - pos} bytes, more than the {MAX_OPENED_BYTES} that are opened")
            self._collected += memoryview(data)[pos:]  # until all of it is there
        elif not self._open(exchange, data[pos:after], header.moved(-pos), now):
            self._waits_for = exchange
            start = pos
        return data, start

    def _take_raw(self, take: TakeRaw, data: bytes, start: int, pos: int, now: float) -> tuple[int, int]:
        """Take the frame at `pos`, which is no request; returns from where on data is to be forwarded, and where it ends."""
        size = read_i32_be(data, pos)
        after = pos + LENGTH_BYTES + size
        if not 0 <= size <= MAX_RAW_BYTES:
            raise InvalidFrame("raw_length", f"a SASL token of {size} bytes, at most {MAX_RAW_BYTES} are taken")
        if after > len(data):
            start = self._forward_without(data, start, pos, after)
            self._discarding = False
            self._collected += memoryview(data)[pos:]
        else:
            exchange = take(data[pos + LENGTH_BYTES : after])
            self._in_flight.append(Entry(0, _SASL_TOKEN, now, Opened(exchange, raw=True)))
            self._responses.raw_due += 1
            self._counts[_SASL_AUTHENTICATE] += 1
        return start, after

    def _forward_without(self, data: bytes, start: int, pos: int, after: int) -> int:
        """Forward what stands before `pos`, but not the request that stands there; what follows is still to be forwarded."""
        if pos > start:
            self.write(data[start:pos])
        self._discarding = after > len(data)
        return min(after, len(data))

    @property
    def unfinished(self) -> bool:
        """Whether the client has sent a part of a request and not the rest."""
        return self._framing.skip > 0 or bool(self._framing.head)

    def hold_back(self) -> None:
        """The client is muted, perhaps by a response: read no more of it than to the end of its request."""
        if not self._framing.skip:
            self._stop(STOP_MUTED)

    def go_on(self, now: float, *, ready: bool = False) -> None:
        """The mute is over, or enough requests were answered, or the exchange that waits is `ready`: take up what was left,
        then read on."""
        stopped = self.stops
        stops = stopped & STOP_IN_FLIGHT if len(self._in_flight) > MAX_IN_FLIGHT // 2 else 0
        if stopped and self._throttle.active:
            stops |= STOP_MUTED
        if not ready:
            stops |= stopped & STOP_NOT_READY
        self.stops = stops
        if stops:
            return
        held, self._held = self._held, b""
        self._put_off = False
        if held:
            self._feed_any(held, now)
        if stopped and not self.stops:
            self._wire.resume_client()

    def _produce(self, data: bytes, header: RequestHeader, after: int, size: int, now: float) -> Entry | None:
        """Charge a Produce request and remember what its likes look like; the entry is None where it gets no answer."""
        acks, acks_end = produce.peek_acks(data, header.body_offset, min(after, len(data)), header.api_version)
        if acks_end > after:
            raise InvalidFrame("overrun", f"a Produce request of {size} bytes ends before its acks")
        bucket = self._bucket("produce", header, now)
        gated = self._gate.closed and self._is_gated(data, header, acks_end, after, bucket)
        head = after - size - 4
        key = _PRODUCE << 16 | header.api_version
        self._hot_key = key
        self._hot_rest = data[head + 12 : acks_end]
        self._hot_min = acks_end - head - 4
        self._hot_answered = acks != 0
        self._hot_generation = self._client.generation
        self._client.hot_bucket = None if self._gate.closed or self._by_topic else bucket  # None: the next one is looked at too
        delay = bucket.charge(size, now)
        entry: Entry | None = None
        if acks != 0:
            entry = Entry(header.correlation_id, key, now, None, bucket)
            self._in_flight.append(entry)
        if delay != 0.0:
            self._throttle.start(delay, now, bucket, entry, size)
        if gated:
            self._throttle.hold(self._gate.delayed(), now, bucket, entry)
        return entry

    @property
    def _by_topic(self) -> bool:
        """Whether the topics of Produce requests are looked at."""
        return self._topics.opener is not None or (self._producer is not None and self._producer.pending)

    def _produce_by_topic(self, data: bytes, header: RequestHeader, start: int, pos: int, after: int, now: float) -> int:
        """Take a Produce request at `pos` whose topics are looked at; from where on the data is still to be forwarded."""
        if self._producer is None and self._topics.opener is not None:
            self._producer = self._topics.opener(self._connection)
        assert self._producer is not None  # noqa: S101 -- else nobody looks
        exchange = self._producer.open(header, header.body_offset - pos, after - pos, now)
        if exchange.whole and after > len(data):
            start = self._forward_without(data, start, pos, after)
            self._discarding = False
            self._collected += memoryview(data)[pos:]
            return start
        entry = self._produce(data, header, after, after - pos - 4, now)
        opened = Opened(exchange)
        if entry is not None:
            entry.special = opened
        if not exchange.whole:
            exchange.scan(data, header.body_offset, min(after, len(data)), now)
            self._scanned = exchange if after > len(data) else None
            return start
        start = self._forward_without(data, start, pos, after)
        rest = exchange.decide(data[pos:after], header.body_offset - pos, now)
        if rest is not None:
            self.write(rest)
        elif entry is not None:
            self._responses.answer_later(opened, now)
            self._responses.answer_own(now)
        if exchange.ends:
            raise EndConnection("a topic is over its quota, and the request wants no answer (acks=0) that could say so")
        return start

    def _refuse(self, data: bytes, header: RequestHeader, after: int, now: float) -> bool:
        """Whether a Produce request is refused while producers are paused. One that wants no answer is put off instead: it
        would be lost without anybody learning of it."""
        acks, acks_end = produce.peek_acks(data, header.body_offset, min(after, len(data)), header.api_version)
        bucket = self._bucket("produce", header, now)
        if not self._is_gated(data, header, acks_end, after, bucket):
            return False
        if acks != 0:
            return True
        self._put_off = True
        self._throttle.hold(self._gate.put_off(), now, bucket, None)
        return False

    def _is_gated(self, data: bytes, header: RequestHeader, acks_end: int, after: int, bucket: Bucket) -> bool:
        """Whether the gate is for this Produce request."""
        if bucket.resolution.exempt:
            return False
        topic = produce_refusal.only_topic(data, acks_end, min(after, len(data)), after, header.api_version)
        return not self._gate.is_own_topic(topic)

    def _other(self, data: bytes, header: RequestHeader, pos: int, now: float) -> bytes:
        """Note any other request. An ApiVersions that is newer than what is known here is made one that no broker knows,
        so that the answer is one that is known here: the error, and the versions there are (KIP-511)."""
        key = header.api_key << 16 | header.api_version
        if header.api_key == _API_VERSIONS and header.api_version > APIS[_API_VERSIONS].max_version:
            data = data[: pos + 6] + _UNKNOWN_VERSION + data[pos + 8 :]
            key = _API_VERSIONS << 16
        special: ChargedFetch | None = None
        if header.api_key == _SHARE_FETCH:
            # It carries acknowledgements, so it is never refused: its answer is charged and the mute holds the client.
            special = ChargedFetch(self._bucket("fetch", header, now))
        self._in_flight.append(Entry(header.correlation_id, key, now, special))
        return data

    def _exchange(self, opener: Opener | None) -> Exchange | None:
        """What opens the request, if anything does."""
        if opener is None:
            return None
        waited, self._waits_for = self._waits_for, None
        return waited or opener(self._connection)

    def _open(self, exchange: Exchange, frame: bytes, header: RequestHeader, now: float) -> bool:
        """Give a whole request to its exchange and do what that says; False if it isn't ready to say anything."""
        self._client.use(header.client_id, now)
        if not exchange.prepare(frame, header, now):
            return False
        opened = Opened(exchange)
        entry = Entry(header.correlation_id, header.api_key << 16 | header.api_version, now, opened)
        self._in_flight.append(entry)
        forwarded = exchange.request(frame, header, entry, now)
        if forwarded is not None:
            self.write(forwarded)
        else:
            self._responses.answer_later(opened, now)
            self._responses.answer_own(now)
        return True

    def ask(self, frame: bytes, take: Take, now: float) -> None:
        """Send a request of Weir's own, whose answer `take` gets and the client does not."""
        self._in_flight.append(Entry(read_i32_be(frame, 8), read_i32_be(frame, 4), now, Asked(take)))
        self.write(frame)

    def _bucket(self, kind: str, header: RequestHeader, now: float) -> Bucket:
        """The bucket of who sends the request."""
        self._client.use(header.client_id, now)
        return self._client.bucket(kind, now)

    def _stop(self, why: int) -> None:
        if not self.stops:
            self._wire.pause_client()
        self.stops |= why
