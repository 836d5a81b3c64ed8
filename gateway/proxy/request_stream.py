"""The path of a client's bytes to its broker.

The splitter finds the requests. The fast path takes a Produce that is like the one before. For any other request, a handler
returns a verdict, and the request stream carries it out at once.
"""

from typing import Final

from librt.strings import read_i32_be

from gateway.proxy.context import SessionContext
from gateway.proxy.decision import Decision
from gateway.proxy.fast_path import FastPath
from gateway.proxy.handler import (
    DEFER,
    FORWARD,
    HANDLER_COST,
    NEXT_TURN,
    WAIT,
    Answer,
    Close,
    Collect,
    Connection,
    EndConnection,
    InterceptedRequest,
    OwnAnswer,
    Replace,
    Request,
    TakeRaw,
    Verdict,
)
from gateway.proxy.handlers.produce import ProduceHandler, begins_unanswered
from gateway.proxy.in_flight import MAX_IN_FLIGHT, Entry, InFlight, OwnRequest, TakeAnswer
from gateway.proxy.next_turns import MAX_READ_COST, MAX_TURN_COST
from gateway.proxy.pauses import Pauses
from gateway.proxy.response_stream import ResponseStream
from gateway.proxy.reuse import TIED
from gateway.proxy.splitter import Splitter
from gateway.proxy.states import CLIENT_UNREAD, HANDLER, IN_FLIGHT, MUTED, RequestEvent, RequestState
from gateway.proxy.wire import ChunkWriter, PassingWriter, Wire
from protocol.api_keys import ApiKey
from protocol.bodies import sasl
from protocol.cursor import LENGTH_BYTES
from protocol.errors import Incomplete, InvalidFrame, ProtocolError
from protocol.headers import parse_request_header

_HEAD_BYTES: Final = 12
_SASL_TOKEN: Final = int(ApiKey.SASL_AUTHENTICATE) << 16


class RequestStream:
    """The direction from the client to its broker."""

    __slots__ = (
        "_client", "_connection", "_counts", "_decision", "_direction", "_engine", "_fast_path", "_framing", "_held_since",
        "_in_flight", "_pauses", "_produce", "_responses", "_splitter", "_throttle", "_wire", "collected",
    )  # fmt: skip

    def __init__(
        self,
        wire: Wire,
        context: SessionContext,
        connection: Connection,
        in_flight: InFlight,
        responses: ResponseStream,
        fast_path: FastPath,
        produce: ProduceHandler,
    ) -> None:
        # mypyc stores attributes in this order: those of the hot path come first (docs/decisions/040-cache-lines.md).
        self._splitter = Splitter(PassingWriter(wire.write_broker), context.max_frame_bytes, context.collect_budget)
        self._framing = self._splitter.framing
        self._fast_path = fast_path
        self._direction = connection.direction
        self._client = connection.client
        self._throttle = connection.throttle
        self._engine = context.engine
        self._in_flight = in_flight
        self._wire = wire
        self._counts = context.counters.requests
        self._decision = Decision(context, connection)
        self._connection = connection
        self._responses = responses
        self._produce = produce
        self.collected = self._splitter.collected
        self._pauses = Pauses(wire, connection, in_flight, responses.held)
        self._held_since = -1.0  # when the first held request was held; below 0 if there is none

    def connect(self, writer: ChunkWriter) -> None:
        """Write to the broker's transport itself, to save a call per chunk."""
        self._splitter.writer = writer

    def feed(self, chunk: bytes, now: float) -> None:
        """Take the client's next bytes. Raises ProtocolError or EndConnection, after which the connection is to be closed."""
        framing = self._framing
        pos = framing.skip
        end = len(chunk)
        fast_path = self._fast_path
        if pos and fast_path.arriving:
            pos -= len(self._splitter.held)  # they wait for the connection's next turn, and are charged
            fast_path.arrived(pos if pos < end else end, now, whole=pos <= end)
        if (
            self._splitter.irregular
            or not self._direction.open
            or not self._client.hot_buckets
            or self._throttle.active
            or fast_path.generation != self._engine.generation
            or len(self._in_flight) > MAX_IN_FLIGHT
        ):
            self._feed_any(chunk, now)
            return
        pos = fast_path.take(chunk, pos, now)
        if pos < end or self._throttle.active or len(self._in_flight) > MAX_IN_FLIGHT:
            self._splitter.begin(chunk, pos)
            self._take_all(now)
        else:
            framing.skip = pos - end
            self._splitter.writer.write(chunk)

    @property
    def passing_bytes(self) -> int:
        """The bytes of the arriving request that are still to come, if they are forwarded unseen; else 0."""
        return 0 if self._splitter.irregular or self._produce.scans else self._framing.skip

    def forward_body(self, piece: memoryview, now: float) -> None:
        """Forward at most `passing_bytes` bytes without a copy: the broker's transport may keep a reference to them."""
        framing = self._framing
        framing.skip -= len(piece)
        whole = framing.skip == 0
        if self._fast_path.arriving:
            self._fast_path.arrived(len(piece), now, whole=whole)
        self._splitter.writer.write(piece)
        if whole:
            self._take_all(now)

    def _feed_any(self, chunk: bytes, now: float, most: int = MAX_READ_COST) -> None:
        """As `feed`, for a chunk that the fast path cannot take as a whole. An inspector sees bytes that cost `most`."""
        pos, end, rest = self._framing.skip, len(chunk), b""
        if pos and not self._splitter.held:
            taken = self._produce.arrived(chunk, min(pos, end), now, most, whole=pos <= end)
            if taken < min(pos, end):
                chunk, rest = chunk[:taken], chunk[taken:]
        if self._splitter.add(chunk):
            if rest:
                self._splitter.held = rest
                self._take_in_next_turn()
            self._take_all(now)

    def _take_all(self, now: float) -> None:
        splitter = self._splitter
        left, cost = MAX_TURN_COST, 1
        try:
            while cost and splitter.pos < len(splitter.data):
                cost = 0 if left <= 0 and self._defer_to_next_turn(now) else self._take_next(now)
                left -= cost
        except (ProtocolError, EndConnection):
            # The requests before the bad one are charged, and a client with acks=0 takes them for done.
            splitter.flush()
            splitter.begin(b"", 0)
            raise
        if not splitter.held:
            self._held_since = -1.0
        splitter.finish()
        if not splitter.inside_request and self._direction.state is not RequestState.HALF_CLOSED:
            self._produce.settle(now, held=bool(splitter.held))
            self._pauses.pause_where_due()

    def _defer_to_next_turn(self, now: float) -> bool:
        """Hold the next request until the event loop's next turn. False if the connection holds it anyway."""
        if self._pauses.must_hold:
            return False
        # No request waits yet: the rest may be the beginning of a head, which the client has to complete.
        self._wait(now, in_turn=True)
        return True

    def _take_in_next_turn(self) -> None:
        """Take the held bytes in the connection's next turn. If they begin within a request, no other reason stops them."""
        self._direction.pause(self._direction.reasons | HANDLER)
        self._wire.pause_client()
        self._wire.call_in_turn()

    def _take_next(self, now: float) -> int:
        """Take the splitter's next request; returns its cost. 0 if none can be taken from its data any more."""
        splitter = self._splitter
        data, pos = splitter.data, splitter.pos
        end = len(data)
        if self._pauses.must_hold:
            self._hold(now)
            return 0
        raw = self._connection.raw
        if raw is not None and end - pos >= LENGTH_BYTES:
            self._take_raw(raw, now)
            return HANDLER_COST
        if end - pos < _HEAD_BYTES:
            splitter.hold_head()
            return 0
        size = read_i32_be(data, pos)
        splitter.framing.check(size)
        after = pos + LENGTH_BYTES + size
        try:
            header = parse_request_header(data, pos + LENGTH_BYTES, min(after, end), after)
            request = Request(data, pos, after, header, now)
            if self._direction.state is RequestState.HALF_CLOSED and not self._produce.wants_no_answer(request, now):
                self._produce.forget_collected()
                splitter.drop(after)
                return HANDLER_COST
            verdict = self._decision.decide(request, now)
            if request.data is not data:
                splitter.data = request.data
                splitter.held = data[len(request.data) :]
                self._take_in_next_turn()
        except Incomplete as cut:
            if after <= end:
                raise InvalidFrame("overrun", f"a request of {size} bytes ends inside its own head") from None
            splitter.hold_head(cut.wanted)
            return 0
        return request.cost if self._carry_out(verdict, request, now) else 0

    def _carry_out(self, verdict: Verdict, request: Request, now: float) -> bool:
        """Do what a verdict says. False if the request is held."""
        splitter, direction = self._splitter, self._direction
        if verdict is WAIT or verdict is NEXT_TURN:
            self._wait(now, in_turn=verdict is NEXT_TURN)
            return False
        if verdict is DEFER:
            direction.fire(RequestEvent.DEFER)
            self._hold(now)
            return False
        if direction.state is not RequestState.READING:
            direction.fire(RequestEvent.TAKE)
        own_bytes = 0
        if verdict is FORWARD:
            splitter.forward(request.after)
        elif isinstance(verdict, Replace):
            splitter.replace(request.after, verdict.frame)
        elif isinstance(verdict, Answer):
            splitter.drop(request.after)
            request.entry.special = OwnAnswer(verdict.frame)
            own_bytes = len(verdict.frame)
        elif isinstance(verdict, Collect):
            splitter.collect(request.after, records=verdict.records)
            return True  # it is counted when it is whole
        elif isinstance(verdict, Close):
            splitter.drop(request.after)
            self._responses.reuse = TIED
            if verdict.frame is not None:
                self._splitter.writer.write(verdict.frame)
                if request.answered:
                    self._in_flight.append(request.entry)
            raise EndConnection(verdict.reason)
        self._counts[request.header.api_key] += 1
        if request.answered:
            self._in_flight.append(request.entry)
            if self._held_since >= 0.0 and not own_bytes:
                request.entry.waited = now - self._held_since
        if own_bytes:
            self._responses.own_answer(own_bytes, now)
            self._responses.held.settle(unread=self.client_full)
        else:
            self._responses.reuse = self._responses.reuse.note_request(request.header.api_key, answered=request.answered)
        return True

    def _wait(self, now: float, *, in_turn: bool) -> None:
        """Hold the next request until `resume` with `ready`, which comes in the connection's next turn or from its handler."""
        self._direction.fire(RequestEvent.DEFER if in_turn else RequestEvent.WAIT)
        self._hold(now)
        if in_turn:
            self._take_in_next_turn()
        else:
            self._direction.pause(self._direction.reasons | HANDLER)

    def _hold(self, now: float) -> None:
        self._splitter.hold()
        self._held_since = now if self._held_since < 0.0 else self._held_since

    def _take_raw(self, take: TakeRaw, now: float) -> None:
        """Take a frame that is not a request."""
        splitter = self._splitter
        data, pos = splitter.data, splitter.pos
        size = read_i32_be(data, pos)
        after = pos + LENGTH_BYTES + size
        if not 0 <= size <= sasl.MAX_FRAME_BYTES:
            raise InvalidFrame("raw_length", f"a SASL token of {size} bytes, at most {sasl.MAX_FRAME_BYTES} are taken")
        if self._direction.state is RequestState.HALF_CLOSED:
            splitter.drop(after)
        elif after > len(data):
            splitter.collect(after, records=False)
        else:
            token = InterceptedRequest(take(data[pos + LENGTH_BYTES : after]), raw=True)
            self._in_flight.append(Entry(0, _SASL_TOKEN, now, token))
            self._responses.raw_due += 1
            self._responses.reuse = TIED
            self._counts[ApiKey.SASL_AUTHENTICATE] += 1
            splitter.forward(after)

    def send_own_request(self, frame: bytes, take: TakeAnswer, now: float) -> None:
        """Send a request of Weir's own behind all that was forwarded. `take` gets the answer, and the client does not.

        To be called by a handler that waits, so that no request is arriving.
        """
        self._splitter.flush()
        self._in_flight.append(Entry(read_i32_be(frame, 8), read_i32_be(frame, 4), now, OwnRequest(take)))
        self._splitter.writer.write(frame)

    # Pauses. A request is never cut: the client is read up to the end of the current one.

    def pause_for_client(self) -> None:
        """Take no further request until the client reads its responses (`client_reads`)."""
        self._direction.pause(self._direction.reasons | CLIENT_UNREAD)
        self.pause_where_muted()

    def client_reads(self, now: float) -> None:
        self._direction.pause(self._direction.reasons & ~CLIENT_UNREAD)
        self.resume(now)

    def pause_where_muted(self) -> None:
        """Follow a mute that a response has caused."""
        if not self._splitter.inside_request and self._direction.state is not RequestState.HALF_CLOSED:
            self._pauses.pause_where_due()

    def resume(self, now: float, *, ready: bool = False) -> None:
        """Take up the held requests and read on, if no reason is left. `ready`: the waiting handler can decide."""
        direction = self._direction
        reasons = direction.reasons
        if not self._pauses.crowded(MAX_IN_FLIGHT // 2):
            reasons &= ~IN_FLIGHT
        reasons &= ~MUTED
        if self._throttle.active and not direction.open:
            reasons |= MUTED
        if ready:
            reasons &= ~HANDLER
        direction.pause(reasons)
        goes_on = ready and self._splitter.begun and direction.state is not RequestState.CLOSED
        if not direction.may_retry and not goes_on:
            return
        if direction.state is RequestState.DEFERRED:
            direction.fire(RequestEvent.RETRY)
        self._take_held(now)

    def _take_held(self, now: float) -> None:
        if held := self._splitter.release():
            self._feed_any(held, now, MAX_TURN_COST)
        if self._direction.reads or (self._splitter.begun and not self._splitter.held):
            self._wire.resume_client()

    @property
    def crowded(self) -> bool:
        """True while the client waits for answers to its requests in flight."""
        return bool(self._direction.reasons & IN_FLIGHT)

    @property
    def client_full(self) -> bool:
        """True while the client does not read its responses."""
        return bool(self._direction.reasons & CLIENT_UNREAD)

    @property
    def wants_no_answers(self) -> bool:
        """True if the client's latest Produce had acks=0: it may close before the broker is connected."""
        return self._fast_path.key >= 0 and not self._fast_path.answered

    @property
    def owes_nothing(self) -> bool:
        """True if a client that has gone may be forgotten: its next request waits, and none seen has acks=0."""
        if not self._direction.reasons or self._splitter.inside_request or self.wants_no_answers:
            return False
        return not begins_unanswered(self._splitter.held)

    @property
    def unfinished(self) -> bool:
        return self._splitter.unfinished

    # The end of a connection.

    def drain(self) -> None:
        """Take no request any more. The rest of one that has begun is still read, and all behind it is held.

        A request has begun if the broker has a part of it, or if its handler has not decided yet.
        """
        self._direction.fire(RequestEvent.DRAIN)
        if self.at_boundary:
            self._wire.pause_client()

    @property
    def at_boundary(self) -> bool:
        """True if all of each request that has begun is on its way to the broker."""
        return not self._splitter.begun and not self._direction.waits_for_handler

    def half_close(self, now: float) -> None:
        """Answer no request any more. Forward only Produce requests with acks=0, held or new: no client sends those again."""
        self._direction.fire(RequestEvent.HALF_CLOSE)
        self._take_held(now)

    def close(self) -> None:
        self._direction.fire(RequestEvent.CLOSE)
        self._splitter.abandon()
