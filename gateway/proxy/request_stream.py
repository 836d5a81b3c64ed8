"""What a client sends: split into requests, measured, and passed on to its broker as it came.

The chunk that was read goes on in one piece wherever it can. Fetch requests of clients with a quota are changed (their
limits lowered), and throttled ones are answered here or reduced to nearly nothing. The rare requests for which the context has
an opener are collected whole and given to their exchange.
"""

from typing import Final

from librt.strings import read_i32_be

from gateway.proxy.collected import Collected
from gateway.proxy.context import SessionContext
from gateway.proxy.handler import (
    MAX_OPENED_BYTES,
    MAX_RAW_BYTES,
    Connection,
    Exchange,
    Gate,
    Opened,
    Opener,
    TakeRaw,
    check_size,
)
from gateway.proxy.handlers.fetch import Fetches
from gateway.proxy.handlers.produce import PUT_OFF, REFUSED, Produces
from gateway.proxy.in_flight import Asked, Entry, InFlight, Take
from gateway.proxy.produce_inspection import EndConnection, ProduceExchange
from gateway.proxy.response_stream import ResponseStream
from gateway.proxy.wire import Wire, Write
from protocol.api_keys import APIS, ApiKey
from protocol.bodies import find_coordinator
from protocol.cursor import LENGTH_BYTES
from protocol.errors import Incomplete, InvalidFrame, ProtocolError
from protocol.framing import MIN_REQUEST_BYTES, Framing
from protocol.headers import RequestHeader, parse_request_header

MAX_IN_FLIGHT: Final = 1024
"""A client with so many unanswered requests is not read until half of them are answered. Brokers take one at a time."""

MAX_OWN_BYTES: Final = 256 * 1024
"""A client is not read while responses that Weir made itself wait in this many bytes for the broker's responses before them."""

_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
_SHARE_FETCH: Final = int(ApiKey.SHARE_FETCH)
_FETCHES: Final = frozenset({_FETCH, _SHARE_FETCH})
_FIND_COORDINATOR: Final = int(ApiKey.FIND_COORDINATOR)
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_SASL_AUTHENTICATE: Final = int(ApiKey.SASL_AUTHENTICATE)
_SASL: Final = frozenset({int(ApiKey.SASL_HANDSHAKE), _SASL_AUTHENTICATE})
_SASL_TOKEN: Final = _SASL_AUTHENTICATE << 16
_UNKNOWN_VERSION: Final = b"\x7f\xff"


# Why the client is not read. Plain ints, as they are looked at for each chunk.
STOP_MUTED: Final = 1
STOP_IN_FLIGHT: Final = 2
STOP_NOT_READY: Final = 4
STOP_ENDING: Final = 8
STOP_UNREAD: Final = 16  # the client does not read its responses

# How far the end of the connection has come, where it is Weir that ends it.
_GOES_ON: Final = 0
_LAST: Final = 1  # no request is begun any more
_PARTED: Final = 2  # and none will be answered


class RequestStream:
    """The direction from the client to its broker."""

    __slots__ = (
        "_client",
        "_collected",
        "_connection",
        "_counts",
        "_discarding",
        "_ending",
        "_engine",
        "_fetches",
        "_framing",
        "_gate",
        "_held",
        "_in_flight",
        "_irregular",
        "_max_bytes",
        "_max_sasl_bytes",
        "_openers",
        "_produces",
        "_put_off",
        "_refused",
        "_responses",
        "_scanned",
        "_taken",
        "_throttle",
        "_waits_for",
        "_wire",
        "_written",
        "client_full",
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
        self._scanned: ProduceExchange | None = None  # whose request is passing by
        self._connection = connection
        self._client = connection.client
        self._throttle = connection.throttle
        self._in_flight = in_flight
        self._responses = responses
        self._fetches = fetches
        self._produces = Produces(connection, context, in_flight)
        self.write: Write = wire.write_broker
        self._framing = Framing(min_bytes=MIN_REQUEST_BYTES, max_bytes=context.max_frame_bytes)
        self._discarding = False
        self._held = b""
        self._collected = Collected(context.collect_budget)
        self._max_sasl_bytes = min(context.max_sasl_bytes + LENGTH_BYTES, MAX_OPENED_BYTES)
        self._waits_for: Exchange | None = None  # whose request stands at the beginning of what is held
        self._put_off = False  # the request that stands there has to wait for something else
        self._refused = 0  # Produce requests that a pause refused since the client was last muted for it
        self.stops = 0
        self.client_full = False  # responses of the highest number of bytes that may wait for the client do so
        self._taken = 0  # of the data that is gone through: the beginning of the current request,
        self._written = 0  # and the end of what has been forwarded or discarded already
        self._irregular = False  # bytes are held, or are not to be forwarded
        self._ending = _GOES_ON

    def feed(self, chunk: bytes, now: float) -> None:
        """Take the next bytes of the client. Raises ProtocolError, after which the connection is to be closed."""
        framing = self._framing
        pos = framing.skip
        bucket = self._client.hot_bucket
        produces = self._produces
        if pos and produces.arriving is not None:
            end = len(chunk)
            produces.arrived(produces.arriving, pos if pos < end else end, now, whole=pos <= end)
        if (
            self._irregular
            or bucket is None
            or self._throttle.active
            or self.client_full
            or produces.generation != self._engine.generation
            or len(self._in_flight) > MAX_IN_FLIGHT
        ):
            self._feed_any(chunk, now)
            return
        end = len(chunk)
        rest = produces.rest
        rest_end = 12 + len(rest)
        own_bytes = produces.own_bytes
        head_end = rest_end + own_bytes
        mark_at = rest_end + produces.own_mark_at
        while end - pos >= head_end:
            size = read_i32_be(chunk, pos)
            if (
                read_i32_be(chunk, pos + 4) != produces.key
                or not produces.min_bytes <= size <= self._max_bytes
                or chunk[pos + 12 : pos + rest_end] != rest
                or (own_bytes and produces.own_marks[chunk[pos + mark_at]] and produces.is_own_at(chunk, pos + rest_end))
            ):
                break
            entry: Entry | None = None
            if produces.answered:
                entry = Entry(read_i32_be(chunk, pos + 8), produces.key, now, None, bucket)
                self._in_flight.append(entry)
            self._counts[_PRODUCE] += 1
            pos += 4 + size
            if pos > end:
                produces.begin(bucket, entry, size, end - pos + size, now)
                break
            delay, enforced = bucket.charge(size, now)
            if delay > 0.0:
                self._throttle.start((delay, enforced), now, bucket, entry, size)
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
            self._collected.add(memoryview(chunk)[:missing])
            if len(chunk) < missing:
                framing.skip -= len(chunk)
                return
            chunk = self._collected.take() + chunk[missing:]
            framing.skip = 0
        chunk = framing.join(chunk)
        pos = framing.skip
        start = min(pos, len(chunk)) if self._discarding else 0
        if pos <= len(chunk):
            self._discarding = False
        self._go_through(chunk, start, pos, now)

    def _go_through(self, data: bytes, start: int, pos: int, now: float) -> None:
        """Take the requests that begin in `data` from `pos` on, and forward it from `start` on."""
        self._taken, self._written = pos, start
        try:
            self._take_all(data, start, pos, now)
        except ProtocolError:
            # What stands in front of the bad request is charged, and with acks=0 its client takes it for done.
            if self._taken > self._written:
                self.write(data[self._written : self._taken])
            raise

    def _take_all(self, data: bytes, start: int, pos: int, now: float) -> None:
        framing = self._framing
        end = len(data)
        while pos < end:
            self._taken = pos
            if self._holds_back:
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
                if self._ending == _PARTED and not self._produces.wants_no_answer(data, header, after, now):
                    start, pos = self._forward_without(data, start, pos, after), after
                    continue
                data, start = self._take(data, header, start, pos, after, now)
            except Incomplete as cut:
                if after <= end:
                    raise InvalidFrame("overrun", f"a request of {size} bytes ends inside its own head") from None
                framing.hold(data, pos, cut.wanted)
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
        if not framing.skip and self._ending != _PARTED:  # a request is never cut in the middle
            if self._refused:
                self._mute_refused(now)
            self._stop_where_due()
        self._irregular = bool(self._held or framing.head or self._discarding or self._collected)

    def _mute_refused(self, now: float) -> None:
        """Mute the client once every request that had arrived is answered.

        Requests in the socket were sent before the client knew of the pause. If each of them waited for a mute of its own, a
        client with many requests in flight would run into its request timeout.
        """
        if self._refused > MAX_IN_FLIGHT or not self._wire.unread_client_bytes():
            self._refused = 0
            self._produces.mute_refused(now)

    def _stop_where_due(self) -> None:
        if self._throttle.active:
            self._stop(STOP_MUTED)
        if self._waits_for is not None or (self._put_off and not self._throttle.active):
            self._stop(STOP_NOT_READY)
        elif self._ending == _LAST:
            self._stop(STOP_ENDING)
        if self._too_many_in_flight:
            self._stop(STOP_IN_FLIGHT)
        if self.client_full:
            self._stop(STOP_UNREAD)

    def _take(self, data: bytes, header: RequestHeader, start: int, pos: int, after: int, now: float) -> tuple[bytes, int]:
        """Take the request at `pos`; returns the data, perhaps changed, and from where on it is still to be forwarded."""
        if self._connection.gate is not None and not self._passes(self._connection.gate, header, after - pos - LENGTH_BYTES):
            self._put_off = True
            return data, start
        refused = False
        size = after - pos - LENGTH_BYTES
        if header.api_key == _PRODUCE and self._gate.paused:
            verdict = self._produces.while_paused(data, header, after, now)
            refused = verdict == REFUSED
            self._put_off = verdict == PUT_OFF
        self._put_off = self._put_off or self._fetch_has_to_wait(data, header, after, now)
        if not self._put_off:
            free = refused or self._ending == _PARTED
            free = free or (header.api_key == _PRODUCE and self._produces.is_free(data, header, after, size, now))
            if free:
                self._client.leave_queue()
            else:
                self._put_off = self._waits_its_turn(header, min(after, len(data)) - pos - LENGTH_BYTES, now)
        if self._put_off:
            return data, start
        if header.api_key in _FETCHES:
            return self._take_fetch(data, header, start, pos, after, now)
        if header.api_key == _PRODUCE and not refused:
            if self._produces.by_topic:
                return data, self._produce_by_topic(data, header, start, pos, after, now)
            self._produces.charge(data, header, after, size, now)
            return data, start
        opener = self._produces.refusal if refused else self._openers.get(header.api_key)
        exchange = self._exchange(opener, header, after - pos, now)
        if exchange is None:
            return self._other(data, header, pos, now), start
        if after > len(data):
            if header.api_key in _SASL:
                check_size(after - pos, self._max_sasl_bytes, "raise listeners[].sasl.max_frame_bytes if the client is right")
            return data, self._collect(data, start, pos, limited=not refused)
        self._refused += refused
        start = self._forward_without(data, start, pos, after)
        if not self._open(exchange, data[pos:after], header.moved(-pos), now):
            if self._throttle.active:
                self._put_off = True  # a quota defers the request, and a new exchange takes it up after the mute
            else:
                self._waits_for = exchange
            start = pos
        return data, start

    def _passes(self, gate: Gate, header: RequestHeader, size: int) -> bool:
        """Whether the request need not wait until it is known if clients have to authenticate. Raises ProtocolError."""
        passes = gate.admit(header.api_key, size)
        if gate.required is False:
            self._connection.gate = None
        return passes

    def _take_fetch(
        self, data: bytes, header: RequestHeader, start: int, pos: int, after: int, now: float
    ) -> tuple[bytes, int]:
        if header.api_key == _SHARE_FETCH:
            return self._fetches.admit_share(data, header, after, now), start
        data, forward = self._fetches.admit(data, header, after, now)
        if not forward:
            start = self._forward_without(data, start, pos, after)
            self._responses.answer_own(now)
        return data, start

    def _fetch_has_to_wait(self, data: bytes, header: RequestHeader, after: int, now: float) -> bool:
        if header.api_key == _SHARE_FETCH:
            return self._fetches.share_has_to_wait(data, header, after, now)
        return header.api_key == _FETCH and self._fetches.has_to_wait(header, now)

    def _waits_its_turn(self, header: RequestHeader, amount: int, now: float) -> bool:
        """Whether the first Produce of a connection, of which `amount` bytes have arrived, has to wait for a bucket in debt."""
        if header.api_key != _PRODUCE:
            return False
        self._client.use(header.client_id, now)
        delay, enforced = self._client.enter_queue("produce", amount, now)
        if delay > 0.0:
            self._throttle.defer((delay, enforced), now, self._client.bucket("produce", now), header.api_key)
        return enforced

    def _take_raw(self, take: TakeRaw, data: bytes, start: int, pos: int, now: float) -> tuple[int, int]:
        """Take the frame at `pos`, which is no request; returns from where on data is to be forwarded, and where it ends."""
        size = read_i32_be(data, pos)
        after = pos + LENGTH_BYTES + size
        if not 0 <= size <= MAX_RAW_BYTES:
            raise InvalidFrame("raw_length", f"a SASL token of {size} bytes, at most {MAX_RAW_BYTES} are taken")
        if self._ending == _PARTED:
            return self._forward_without(data, start, pos, after), after
        if after > len(data):
            start = self._collect(data, start, pos, limited=True)
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
        self._written = min(after, len(data))
        return self._written

    def _collect(self, data: bytes, start: int, pos: int, *, limited: bool) -> int:
        """Forward what stands before `pos`, and keep the beginning of the request that stands there until the rest has come."""
        if pos > start:
            self.write(data[start:pos])
        self._written = len(data)
        self._collected.begin(memoryview(data)[pos:], limited=limited)
        return self._written

    def abandon(self) -> None:
        """The connection is gone."""
        self._collected.drop()

    # The end of a connection, where it is Weir that ends it.

    def take_no_more(self) -> None:
        """Begin no request any more. The rest of one that has begun is still read; what stands behind it is held. One of which
        nothing has gone to the broker, and of which nothing has been decided, has not begun."""
        self._ending = _LAST
        self._client.hot_bucket = None  # off the fast path, which knows nothing of this
        if self.at_boundary:
            self._stop(STOP_ENDING)

    @property
    def at_boundary(self) -> bool:
        """Whether all of each request that has begun is on its way to the broker."""
        return (not self._framing.skip or bool(self._collected)) and self._waits_for is None

    def part(self, now: float) -> None:
        """Nothing will be answered any more: of what is held and what still comes, forward only the Produce requests that want
        no answer (acks=0), since nobody would send them again."""
        self._ending = _PARTED
        self._put_off = False
        self.stops = 0
        held, self._held = self._held, b""
        if held:
            self._feed_any(held, now)
        self._wire.resume_client()

    @property
    def _holds_back(self) -> bool:
        """Whether no request may be begun now."""
        if self._ending == _GOES_ON:
            return self._throttle.active or self.client_full or self._too_many_in_flight
        return self._ending == _LAST and self._waits_for is None

    @property
    def _too_many_in_flight(self) -> bool:
        return len(self._in_flight) > MAX_IN_FLIGHT or self._responses.own_bytes > MAX_OWN_BYTES

    @property
    def wants_no_answers(self) -> bool:
        """Whether the client's latest Produce requests have acks=0: it may close before the broker is connected."""
        return self._produces.key >= 0 and not self._produces.answered

    @property
    def unfinished(self) -> bool:
        """Whether the client has sent a part of a request and not the rest."""
        return self._framing.skip > 0 or bool(self._framing.head)

    def wait_for_client(self) -> None:
        """The client does not read its responses: take no further request until it does."""
        self.client_full = True
        if not self._framing.skip:
            self._stop(STOP_UNREAD)

    def hold_back(self) -> None:
        """The client is muted, perhaps by a response: read no more of it than to the end of its request."""
        if not self._framing.skip:
            self._stop(STOP_MUTED)

    def go_on(self, now: float, *, ready: bool = False) -> None:
        """The mute is over, or enough requests were answered, or the exchange that waits is `ready`: take up what was left,
        then read on."""
        stopped = self.stops
        crowded = len(self._in_flight) > MAX_IN_FLIGHT // 2 or self._responses.own_bytes > MAX_OWN_BYTES
        stops = stopped & STOP_IN_FLIGHT if crowded else 0
        if stopped and self._throttle.active:
            stops |= STOP_MUTED
        if self.client_full:
            stops |= stopped & STOP_UNREAD
        stops |= stopped & STOP_ENDING
        if not ready and self._waits_for is not None:
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

    def _produce_by_topic(self, data: bytes, header: RequestHeader, start: int, pos: int, after: int, now: float) -> int:
        """Take a Produce request at `pos` whose topics are looked at; from where on the data is still to be forwarded."""
        exchange = self._produces.open_by_topic(header, pos, after, now)
        if exchange.whole and after > len(data):
            return self._collect(data, start, pos, limited=False)
        entry = self._produces.charge(data, header, after, after - pos - 4, now)
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

    def _other(self, data: bytes, header: RequestHeader, pos: int, now: float) -> bytes:
        """Note any other request. An ApiVersions that is newer than what is known here is made one that no broker knows,
        so that the answer is one that is known here: the error, and the versions there are (KIP-511)."""
        key = header.api_key << 16 | header.api_version
        if header.api_key == _FIND_COORDINATOR:
            after = pos + LENGTH_BYTES + read_i32_be(data, pos)
            find_coordinator.check_request(header.api_version, data, header.body_offset, min(after, len(data)), after)
        if header.api_key == _API_VERSIONS and header.api_version > APIS[_API_VERSIONS].max_version:
            data = data[: pos + 6] + _UNKNOWN_VERSION + data[pos + 8 :]
            key = _API_VERSIONS << 16
        self._in_flight.append(Entry(header.correlation_id, key, now))
        return data

    def _exchange(self, opener: Opener | None, header: RequestHeader, size: int, now: float) -> Exchange | None:
        """What opens the request of `size` bytes, if anything does."""
        if opener is None:
            return None
        waited, self._waits_for = self._waits_for, None
        if waited is not None:
            return waited
        self._client.use(header.client_id, now)
        exchange = opener(self._connection)
        return exchange if exchange is not None and exchange.opens(size, now) else None

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

    def _stop(self, why: int) -> None:
        if self._ending == _PARTED:
            return  # the rest of what the client has sent is read before the connection is closed
        if not self.stops:
            self._wire.pause_client()
        self.stops |= why
