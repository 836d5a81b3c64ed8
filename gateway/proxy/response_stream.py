"""The broker's answers: matched by order, charged if they are Fetches, and passed on as they come wherever they can be.

Weir changes answers that carry addresses or the versions of APIs, and throttle times while the client is muted.
"""

from typing import Final

from librt.strings import read_i32_be

from gateway.proxy.channel_throttle import ChannelThrottle
from gateway.proxy.collected import HeldAnswers
from gateway.proxy.context import SessionContext
from gateway.proxy.handler import EndConnection, InterceptedRequest, OwnAnswer
from gateway.proxy.handlers.fetch import FetchHandler
from gateway.proxy.in_flight import ChargedFetch, Entry, InFlight, OwnRequest
from gateway.proxy.latency import note_latency
from gateway.proxy.response_bodies import (
    NO_REWRITE,
    PLAIN,
    REWRITES,
    SEARCHED_SINCE,
    Body,
    BodyChange,
    CollectedBody,
    DroppedBody,
    SearchedBody,
    in_pieces,
    joined,
    lag_noted,
    patched,
    translated,
)
from gateway.proxy.reuse import Reuse
from gateway.proxy.wire import ChunkWriter, Data, PassingWriter, Wire
from protocol.api_keys import APIS, NEVER, WALK, ApiKey
from protocol.bodies import addresses, node_endpoints, produce, sasl
from protocol.bodies.tail_scanner import TailScanner
from protocol.cursor import INT32, LENGTH_BYTES
from protocol.errors import Incomplete, InvalidFrame, ProtocolError
from protocol.framing import MIN_RESPONSE_BYTES, Framing
from protocol.throttle import read_throttle, throttle_offset

_NO_ERROR: Final = b"\0\0"
_NO_TAGS: Final = b"\0"
_THROTTLE_AND_TAGS: Final = 5
_ERROR_TO_THROTTLE: Final = 30  # error_code, base_offset, log_append_time, log_start_offset and four empty fields
_PRODUCE: Final = int(ApiKey.PRODUCE)
_METADATA: Final = int(ApiKey.METADATA)


class ResponseStream:
    """The direction from the broker to its client."""

    __slots__ = (
        "_body", "_clean_error", "_clean_head", "_clean_key", "_clean_size", "_context", "_counters", "_fetch", "_framing",
        "_in_flight", "_throttle", "current", "held", "raw_due", "resumable", "reuse", "writer",
    )  # fmt: skip

    def __init__(
        self, wire: Wire, context: SessionContext, throttle: ChannelThrottle, in_flight: InFlight, fetch_handler: FetchHandler
    ) -> None:
        # mypyc stores attributes in this order: those of the hot path come first (docs/decisions/040-cache-lines.md).
        # A broker is trusted with the size of its answers: fetch.max.bytes is its own affair, and so are huge metadata.
        self._framing = Framing(min_bytes=MIN_RESPONSE_BYTES, max_bytes=2**31 - 1)
        self._throttle = throttle
        self._body: Body | None = None  # changes the current response; None: it is passed on
        self.held = HeldAnswers(context.collect_budget.answers)
        self._in_flight = in_flight
        self.current: Entry | None = None  # its response has begun and is not over
        # The last Produce response, if it was for one partition and had no optional field. Another one with the same head and
        # length, and no error, has none either.
        self._clean_key = -1
        self._clean_size = self._clean_error = 0
        self._clean_head = b""
        self._counters = context.counters
        self.reuse = Reuse()
        self.writer: ChunkWriter = PassingWriter(wire.write_client)
        self.resumable = False
        self._context = context
        self._fetch = fetch_handler
        self.raw_due = 0  # answers in flight that are not responses, but bytes behind their length

    def feed(self, chunk: bytes, now: float) -> None:
        """Take the next bytes of the broker, and set `resumable` if the client may be read again because of them.

        Raises ProtocolError, after which the connection is to be closed. The responses before the error are written.
        """
        framing = self._framing
        pos = framing.skip
        if self._throttle.active or self._body is not None or framing.head or self.held.waiting:
            self._feed_any(chunk, now)
            return
        end = len(chunk)
        if 0 < pos <= end:
            self.current = None
        in_flight = self._in_flight
        entry: Entry | None = None
        last = -1
        while end - pos >= 8 and in_flight:
            entry = in_flight[0]
            key = entry.key
            size = read_i32_be(chunk, pos)
            if key == self._clean_key:
                # a Produce response without optional fields, as the last one
                error = pos + self._clean_error
                if (
                    entry.special is not None
                    or size != self._clean_size
                    or chunk[pos + 8 : error - 4] != self._clean_head
                    or chunk[error : error + 2] != _NO_ERROR
                ):
                    break
            elif entry.special is not None or key not in PLAIN:
                break
            if entry.correlation_id != read_i32_be(chunk, pos + 4) or size < MIN_RESPONSE_BYTES:
                break
            in_flight.popleft()
            note_latency(self._counters, entry, now)
            last = pos
            pos += 4 + size
            if pos > end:
                self.current = entry
        if pos < end:
            self._go_through([], chunk, 0, pos, now)
        else:
            framing.skip = pos - end
            self.reuse = self.reuse.note_answers(chunk, last if pos == end else -1, entry)
            self.writer.write(chunk)

    def _feed_any(self, chunk: bytes, now: float) -> None:
        """As `feed`, in any state."""
        framing = self._framing
        chunk = framing.join(chunk)
        end = len(chunk)
        pos = framing.skip
        start = 0
        pieces: list[Data] = []
        if pos:  # the chunk begins inside a response
            if self._body is not None:
                start = min(pos, end)
                pieces.append(self._body.feed(chunk, 0, start))
            if pos <= end:
                start = self._finish_current(pieces, chunk, start, pos, now)
        self._go_through(pieces, chunk, start, pos, now)

    def _go_through(self, pieces: list[Data], chunk: bytes, start: int, pos: int, now: float) -> None:
        """Take the responses that begin in `chunk` from `pos` on; the bytes before `start` are in `pieces` already."""
        framing = self._framing
        end = len(chunk)
        framing.skip = max(pos - end, 0)
        entry: Entry | None = None
        last = -1
        try:
            while pos < end:
                raw = self.raw_due > 0 and self._raw_is_due()
                if end - pos < (LENGTH_BYTES if raw else 8):
                    framing.hold(chunk, pos)
                    end = pos
                    break
                size = read_i32_be(chunk, pos)
                entry = self._due_raw(size) if raw else self._due(read_i32_be(chunk, pos + 4), size)
                after = pos + 4 + size
                try:
                    start = self._open(pieces, chunk, start, pos, after, entry, now)
                except Incomplete as cut:
                    if after <= end:
                        raise InvalidFrame("broker_overrun", f"a response of {size} bytes ends inside its own head") from None
                    framing.hold(chunk, pos, cut.wanted)
                    end = pos
                    break
                self._in_flight.popleft()
                note_latency(self._counters, entry, now)
                last = pos
                pos = after
                if pos > end:
                    self.current = entry
                    framing.skip = pos - end
                elif self._throttle.active or self.held.waiting:
                    start = self._answered(pieces, chunk, start, pos, entry, now)
        except (ProtocolError, EndConnection):
            self._write(pieces, chunk, start, pos)  # the client gets the good answers before this one
            raise
        self.reuse = self.reuse.note_answers(chunk, last if pos == len(chunk) else -1, entry)
        self._write(pieces, chunk, start, end)

    def end(self) -> None:
        """Drop the response that has begun, as its rest never comes."""
        self._body = self.current = None

    @property
    def newest(self) -> Entry | None:
        return self._in_flight[-1] if self._in_flight else self.current

    @property
    def unanswered(self) -> int:
        return len(self._in_flight)

    @property
    def unfinished(self) -> bool:
        """True while a response has begun and is not over."""
        return self._framing.skip > 0

    def own_answer(self, size: int, now: float) -> None:
        """Count an answer of Weir's own, the last one in flight, and write it if its turn has come.

        The caller settles `held` afterwards.
        """
        self.held.wait(size)
        if self.current is None:
            self._write(self._own_answers(now), b"", 0, 0)

    def _raw_is_due(self) -> bool:
        special = self._in_flight[0].special if self._in_flight else None
        return isinstance(special, InterceptedRequest) and special.raw

    def _due_raw(self, size: int) -> Entry:
        if not 0 <= size <= sasl.MAX_FRAME_BYTES:
            raise InvalidFrame("broker_raw_length", f"the broker sends a SASL token of {size} bytes")
        self.raw_due -= 1
        return self._in_flight[0]

    def _due(self, correlation_id: int, size: int) -> Entry:
        self._framing.check(size)
        if not self._in_flight:
            raise InvalidFrame("broker_unasked", f"the broker answers {correlation_id}, but no request is in flight")
        entry = self._in_flight[0]
        if entry.correlation_id != correlation_id:
            raise InvalidFrame("broker_order", f"the broker answers {correlation_id} while {entry.correlation_id} is due")
        return entry

    def _open(self, pieces: list[Data], chunk: bytes, start: int, pos: int, after: int, entry: Entry, now: float) -> int:
        """Begin a response at `pos` that is not just passed on; returns the offset behind the bytes in `pieces`."""
        api_key, version, special = entry.api_key, entry.version, entry.special
        if isinstance(special, OwnRequest):
            return self._collect(pieces, chunk, start, pos, after, now, special.finish)
        if isinstance(special, InterceptedRequest) and after - pos <= special.longest:
            handler, translate, learn = special.handler, self._context.translate, self._context.learn
            return self._collect(
                pieces, chunk, start, pos, after, now,
                lambda frame, then: self._patched(
                    handler.response(translated(entry, frame, translate, learn), then), entry, then
                ),
            )  # fmt: skip
        if isinstance(special, ChargedFetch):
            frame = self._fetch.charge(special, chunk, pos, after, entry, now)
            if self._fetch.answer_awaited:
                self._fetch.answer_awaited = False
                self.resumable = True
            if frame is not None:
                return self._replace(pieces, chunk, start, pos, after, frame, entry, now)
            if not special.muted and self._fetch.follows_lag(api_key):
                start = self._pass_on(pieces, chunk, start, pos, after, entry, now)
                self._body = lag_noted(self._body, version, self._fetch.note_lag, special, chunk, pos, after, now)
                return start
        return self._pass_on(pieces, chunk, start, pos, after, entry, now)

    def _pass_on(self, pieces: list[Data], chunk: bytes, start: int, pos: int, after: int, entry: Entry, now: float) -> int:
        """As `_open`, for a response of the broker's that the client gets."""
        api_key, version = entry.api_key, entry.version
        if version >= SEARCHED_SINCE.get(api_key, NEVER):
            if api_key != _PRODUCE or not self._remember_if_clean(chunk, pos, after, entry.key):
                return self._search(pieces, chunk, start, pos, after, entry, now)
        elif version >= REWRITES.get(api_key, NO_REWRITE)[0]:
            if api_key == _METADATA and after > len(chunk):
                return self._pass_behind_brokers(pieces, chunk, start, pos, entry, now)
            return self._collect(
                pieces, chunk, start, pos, after, now,
                lambda frame, then: self._patched(
                    translated(entry, frame, self._context.translate, self._context.learn), entry, then
                ),
            )  # fmt: skip
        return self._patch(pieces, chunk, start, pos, after, entry, now)

    def _pass_behind_brokers(self, pieces: list[Data], chunk: bytes, start: int, pos: int, entry: Entry, now: float) -> int:
        """Translate the brokers at the beginning of a Metadata response, and pass on its topics as they come."""
        translate, learn = self._context.translate, self._context.learn
        front, behind = addresses.rewrite_metadata_front(entry.version, chunk, pos, len(chunk), translate, learn)
        pieces += (memoryview(chunk)[start:pos], self._patched(front, entry, now))
        return behind

    def _remember_if_clean(self, chunk: bytes, pos: int, after: int, key: int) -> bool:
        """Remember a Produce response for one partition without optional fields. False for any other response."""
        throttle = produce.single_partition_throttle(chunk, pos, min(after, len(chunk)), key & 0xFFFF)
        if throttle + _THROTTLE_AND_TAGS != after or chunk[after - 1 : after] != _NO_TAGS:
            return False
        error = throttle - _ERROR_TO_THROTTLE
        self._clean_key = key
        self._clean_size = after - pos - 4
        self._clean_head = chunk[pos + 8 : error - 4]
        self._clean_error = error - pos
        return True

    def _replace(
        self, pieces: list[Data], chunk: bytes, start: int, pos: int, after: int, frame: bytes, entry: Entry, now: float
    ) -> int:
        """Send `frame` in place of the broker's answer."""
        changed: list[Data] = []
        passed = self._pass_on(changed, frame, 0, 0, len(frame), entry, now)
        pieces += (memoryview(chunk)[start:pos], *changed, memoryview(frame)[passed:])
        self._body = None if after <= len(chunk) else DroppedBody()
        return min(after, len(chunk))

    def _search(self, pieces: list[Data], chunk: bytes, start: int, pos: int, after: int, entry: Entry, now: float) -> int:
        """Pass on a response of any length, and translate the addresses at its end."""
        api_key, version = entry.api_key, entry.version
        translate = self._context.translate
        if after <= len(chunk):
            scanner = TailScanner(api_key, version)
            tail = pos + scanner.feed(chunk, pos, after)
            found = tail if api_key == _PRODUCE else -1  # the throttle time, which the scanner stops at
            section = tail + INT32.size if found >= 0 else tail
            if chunk[section:after] == _NO_TAGS or section == after:
                return self._patch(pieces, chunk, start, pos, after, entry, now, found)
            frame = node_endpoints.rewrite_behind(api_key, chunk[pos:after], section - pos, translate)
            pieces += (memoryview(chunk)[start:pos], self._patched(frame, entry, now))
            return after
        body = SearchedBody(api_key, version, translate, self._throttle.time_left_ms)
        first = body.begin(chunk, pos, now)  # before the pieces change: it may raise
        pieces += (memoryview(chunk)[start:pos], *first)
        self._body = body
        return len(chunk)

    def _patch(
        self, pieces: list[Data], chunk: bytes, start: int, pos: int, after: int, entry: Entry, now: float, found: int = -1
    ) -> int:
        """Pass on a response, with our throttle time if that is longer. `found`: its offset, if that is known."""
        if not self._throttle.active:
            return start
        api_key, version = entry.api_key, entry.version
        try:
            offset = found if found >= 0 else throttle_offset(api_key, version, chunk, pos, min(after, len(chunk)))
        except Incomplete:
            if api_key == _PRODUCE:
                return self._search(pieces, chunk, start, pos, after, entry, now)
            if APIS[api_key].throttle_place != WALK:
                raise
            return self._collect(pieces, chunk, start, pos, after, now, lambda frame, then: self._patched(frame, entry, then))
        left = self._throttle.time_left_ms(now)
        if offset < 0 or read_throttle(chunk, offset) >= left:
            return start
        pieces += (memoryview(chunk)[start:offset], INT32.pack(left))
        return offset + 4

    def _collect(
        self, pieces: list[Data], chunk: bytes, start: int, pos: int, after: int, now: float, change: BodyChange
    ) -> int:
        """Collect a response, and change it once it is whole."""
        if after <= len(chunk):
            changed = change(chunk[pos:after], now)
            self.held.add(len(changed))
            pieces += (memoryview(chunk)[start:pos], *in_pieces(changed))
            return after
        self.held.begin(after - pos)
        pieces.append(memoryview(chunk)[start:pos])
        self._body = CollectedBody(change, self.held)
        self._body.feed(chunk, pos, len(chunk))
        return len(chunk)

    def _patched(self, frame: bytes, entry: Entry, now: float) -> Data:
        return patched(entry, frame, self._throttle.time_left_ms(now))

    def _finish_current(self, pieces: list[Data], chunk: bytes, start: int, pos: int, now: float) -> int:
        """The response that earlier chunks began ends at `pos`."""
        self._framing.skip = 0
        if self._body is not None:
            pieces += in_pieces(self._body.finish(now))
            self._body = None
        entry, self.current = self.current, None
        return start if entry is None else self._answered(pieces, chunk, start, pos, entry, now)

    def _answered(self, pieces: list[Data], chunk: bytes, start: int, pos: int, entry: Entry, now: float) -> int:
        """End a mute if the response that ends at `pos` was pending, and write Weir's own answers behind it."""
        if self._throttle.answered(entry):
            self.resumable = True
        own = self._own_answers(now)
        if own:
            pieces += (memoryview(chunk)[start:pos], *own)
        return pos if own else start

    def _own_answers(self, now: float) -> list[Data]:
        own: list[Data] = []
        while self._in_flight:
            entry = self._in_flight[0]
            special = entry.special
            if not isinstance(special, OwnAnswer):
                break
            self.held.written(len(special.frame))
            self._in_flight.popleft()
            own += in_pieces(self._patched(special.frame, entry, now))
            if self._throttle.answered(entry):
                self.resumable = True
        return own

    def _write(self, pieces: list[Data], chunk: bytes, start: int, end: int) -> None:
        if start < end:
            pieces.append(chunk if start == 0 and end == len(chunk) else memoryview(chunk)[start:end])
        for piece in joined(pieces):
            self.writer.write(piece)
