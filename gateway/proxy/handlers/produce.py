"""Produce under a quota: its charge, the pause while a volume is over its hard limit, and the look at its topics."""

from typing import Final

from gateway.proxy.context import SessionContext
from gateway.proxy.fast_path import FastPath
from gateway.proxy.handler import (
    COLLECT_PRODUCE,
    DEFER,
    FORWARD,
    NEXT_TURN,
    Answer,
    Close,
    Connection,
    Replace,
    Request,
    Verdict,
)
from gateway.proxy.in_flight import OwnRequest
from gateway.proxy.next_turns import MAX_READ_COST
from gateway.proxy.produce_gate import NO_ANSWER, InspectedProduce, ProduceInspector
from gateway.proxy.sequence_gaps import GapRequest, SequenceGaps
from gateway.proxy.states import RequestState
from gateway.proxy.wire import Wire
from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import VOLUMES
from gateway.quotas.kinds import request_kinds
from gateway.quotas.kinds.produce import KIND
from gateway.quotas.meter import throttle_time_ms
from protocol.api_keys import ApiKey
from protocol.bodies import produce
from protocol.bodies.produced_topics import indexes_of, scan_whole
from protocol.cursor import LENGTH_BYTES
from protocol.error_codes import ErrorCode
from protocol.errors import Incomplete, InvalidFrame, ProtocolError
from protocol.headers import parse_request_header

PAUSED_MESSAGE: Final = "Weir: a volume of the cluster is over its hard limit, or its usage is not known; try again later"

MAX_REFUSED: Final = 1024
"""The most requests of a client that a pause refuses before it mutes the client."""

MAX_KEPT: Final = 100
"""Weir keeps the topics and partitions of a Produce until its answer, if it refuses a part of the request. After more than this
number on a connection, the next request waits for the answers."""

_PRODUCE: Final = int(ApiKey.PRODUCE)
_KIND: Final = KIND.name
_OTHER_KINDS: Final[tuple[str, ...]] = tuple([kind.name for kind in request_kinds(ApiKey.PRODUCE) if kind.name != _KIND])
_KINDS: Final[tuple[str, ...]] = (_KIND, *_OTHER_KINDS)


class ProduceHandler:
    """Handles all Produce requests of one connection that the fast path does not take."""

    __slots__ = (
        "_client", "_connection", "_fast_path", "_gate", "_in_turn", "_inspector", "_internal", "_kept", "_own_topics",
        "_pay_from", "_payers", "_prepaid", "_refused", "_scanned", "_throttle", "_topics", "_unpaid", "_unread", "_wire",
        "gaps",
    )  # fmt: skip

    def __init__(self, wire: Wire, connection: Connection, context: SessionContext, fast_path: FastPath) -> None:
        self._wire = wire
        self._connection = connection
        self._client = connection.client
        self._throttle = connection.throttle
        self._fast_path = fast_path
        self._gate = context.produce_gate
        self._topics = context.topics
        self._own_topics = context.own_topics
        self._internal: tuple[Bucket, ...] = (context.engine.internal,)
        self.gaps = SequenceGaps(context.collect_budget.gaps)
        self._inspector: ProduceInspector | None = None
        self._kept = 0  # topics and partitions kept for answers to requests refused in part, since the last `hold`
        self._scanned: InspectedProduce | None = None  # the arriving request, if the inspector sees it pass
        self._in_turn = False  # a long request has waited for its turn
        self._refused = 0  # requests that a pause has refused since the client was last muted for it
        self._unread = -1  # bytes in the socket when this chunk's last request was refused; -1 if none was refused
        self._payers: tuple[Bucket, ...] = ()  # they have paid for `_prepaid` bytes of a request that is collected
        self._prepaid = 0
        self._unpaid = 0  # bytes of that request that have arrived, and are paid from the time `_pay_from` on
        self._pay_from = 0.0

    def handle(self, request: Request, now: float) -> Verdict:
        if self._gate.paused:
            acks, acks_end = _acks(request)
            self._client.use(request.header.client_id, now)
            if self._is_gated(request, acks_end):
                waits = acks == 0 or self._gate.learning
                return self._defer_paused(now) if waits else self._refuse_paused(request, now)
        # A collected request had its turn when it began, and the debt may be its own.
        if not self._payers and self._enter_queues(request, now):
            return DEFER
        if self._client.place.arrives_by and not request.whole:
            # The client may have given up long ago: then the end of its connection is behind the unread bytes.
            self._prepay(request, now, self._client.place.arrives_by)
            return COLLECT_PRODUCE
        if self._client.place.arrives_by and self._wire.client_has_left() and _acks(request)[0] != 0:
            return Close(None, "the client has left before its turn, so it pays nothing")
        if self._inspects:
            return self._inspect(request, now)
        self._charge(request, now)
        return FORWARD

    def arrived(self, chunk: bytes, end: int, now: float, most: int, *, whole: bool) -> int:
        """Take the arriving request's bytes before `end`: charge a collected request, or show the bytes to the inspector.

        The last bytes of a collected request are charged by `_charge`, which mutes its client. Returns the offset behind the
        bytes that are taken, below `end` if all cost the inspector more than `most`.
        """
        if self._payers and not whole:
            self._unpaid += end
            self._pay(now)
        if self._scanned is not None:
            scanned, _ = self._scanned.scan(chunk, 0, end, most)
            if scanned < end:
                return scanned
            if whole:
                self._scanned = None
        return end

    def _prepay(self, request: Request, now: float, pay_from: float = 0.0) -> None:
        """Charge the bytes of a collected request as they arrive, as its client may never send the last one.

        Those that come before `pay_from` are free until then. No byte is given back: a bucket forgets a debt that is too large,
        so it may have taken fewer bytes.
        """
        self._client.use(request.header.client_id, now)
        # Only a request to Weir's own topics needs its acks here, and they may not have arrived yet.
        own = len(self._own_topics.keys) > 0 and self._is_own(request, _acks(request)[1])
        free = own and self._own_topics.take_free(request.size, now)
        self._payers, self._prepaid, self._unpaid = self._buckets(now, free=free), 0, request.arrived
        self._pay_from = pay_from
        self._pay(now)

    def _pay(self, now: float) -> None:
        if now >= self._pay_from:
            for bucket in self._payers:
                bucket.record(bucket.per_byte * self._unpaid, now)
            self._prepaid += self._unpaid
            self._unpaid = 0

    def _buckets(self, now: float, *, free: bool) -> tuple[Bucket, ...]:
        return self._internal if free else self._client.buckets(_KIND, now)

    def forget_collected(self) -> None:
        """The collected request, if there is one, is dropped. Its charge stays."""
        self._payers = ()

    @property
    def scans(self) -> bool:
        """True while the inspector has to see the rest of the arriving request."""
        return self._scanned is not None

    def _charge(self, request: Request, now: float) -> None:
        """Charge the bytes that have arrived, and remember the template for the next requests."""
        acks, acks_end = _acks(request)
        if acks_end > request.after:
            raise InvalidFrame("overrun", f"a Produce request of {request.size} bytes ends before its acks")
        self._client.use(request.header.client_id, now)
        gated = self._gate.closed and self._is_gated(request, acks_end)
        own = self._is_own(request, acks_end)
        payers, self._payers = self._payers, ()
        # A free request is not the client's first one of its bucket: the next one has to wait for a debt as before.
        free = payers[0] is self._internal[0] if payers else own and self._own_topics.take_free(request.size, now)
        buckets = self._buckets(now, free=free)
        request.entry.buckets = buckets
        self._fast_path.learn(request, acks, acks_end)
        others: tuple[Bucket, ...] = ()
        if not free:
            for kind in _OTHER_KINDS:
                others += self._client.limited_buckets(kind, now)
        parse_next = own or self._gate.closed or self._inspects or self._connection.authentication_gate is not None
        self._client.hot_buckets = () if parse_next else buckets + others
        request.answered = acks != 0
        entry = request.entry if acks != 0 else None
        if payers:
            self._client.place.leave_queue()
            # Even if the client has other buckets by now: these have paid for the most part.
            self._throttle.charge(payers, request.size, now, entry, paid=self._prepaid)
            self._throttle.charge(others, request.size, now, entry)
        elif not request.whole:
            self._fast_path.begin(buckets + others, entry, request.size, request.arrived, now)
        else:
            self._throttle.charge(buckets + others, request.size, now, entry)
        if gated:
            delay = self._gate.count_delayed()
            self._throttle.record_volume_delay(delay, now, buckets[0], request.size)
            self._throttle.mute_for_volumes(delay, now, buckets[0], entry)

    def _enter_queues(self, request: Request, now: float) -> bool:
        """As `Connection.enter_queues`. Requests that no client is charged for do not wait.

        Nor do those of a connection that Weir closes, as their client would not send them again.
        """
        if self._connection.direction.state is RequestState.HALF_CLOSED or self._is_free(request, now):
            self._client.place.leave_queue()
            return False
        self._client.use(request.header.client_id, now)
        return self._connection.enter_queues(_KINDS, request, now, collects=True)

    # The topics of requests.

    @property
    def _inspects(self) -> bool:
        return self._topics.make_inspector is not None or self.gaps.pending

    def _inspect(self, request: Request, now: float) -> Verdict:
        inspected = self._open(request, now)
        if inspected.needs_whole and not request.whole:
            self._prepay(request, now)
            return COLLECT_PRODUCE
        if inspected.needs_whole and self._waits_for_turn(request):
            return NEXT_TURN
        self._charge(request, now)
        take = None if request.answered else inspected.take_results
        if take is None:
            request.intercept(inspected)
        else:
            request.entry.special = OwnRequest(take, outlives_client=True)
            request.answered = True
        if not inspected.needs_whole:
            scanned, cost = inspected.scan(request.data, request.header.body_offset, request.end, MAX_READ_COST)
            request.cost += cost
            if scanned < request.end:
                request.data = request.data[:scanned]
            self._scanned = None if request.whole else inspected
            return FORWARD if take is None else Replace(_wanting_answer(request, request.data[request.pos : request.end]))
        frame, header = request.cut()
        rest = inspected.decide(frame, header.body_offset, now)
        if take is not None and rest is not None:
            rest = _wanting_answer(request, rest)
        if inspected.ends:
            return Close(rest, f"a partition is refused, and {NO_ANSWER}")
        if rest is not None:
            self._kept += inspected.kept
        if self._kept > MAX_KEPT:
            # Otherwise a client that pipelines could have Weir keep the topics of many requests, in 100 times their bytes.
            self._throttle.hold(request.entry, now)
            self._kept = 0
        return Replace(rest) if rest is not None else Answer(inspected.answer(now))

    def _waits_for_turn(self, request: Request) -> bool:
        """True, once, for a request that may have up to `MAX_PRODUCE_ELEMENTS` topics and partitions."""
        self._in_turn = not self._in_turn and request.frame_bytes > MAX_READ_COST
        return self._in_turn

    def _open(self, request: Request, now: float) -> InspectedProduce:
        make_inspector = self._topics.make_inspector
        if make_inspector is None:
            return GapRequest(self.gaps, request.header)
        if self._inspector is None:
            self._inspector = make_inspector(self._connection, self.gaps)
        header = request.header
        return self._inspector.open(header, header.body_offset - request.pos, request.frame_bytes, now)

    # The pause while a volume is over its hard limit.

    def _defer_paused(self, now: float) -> Verdict:
        """Mute the client before the request: without an answer it would not learn of a refusal, or none is due yet."""
        bucket = self._client.bucket(_KIND, now)
        # The request is looked at again when the time is over, and its bytes are recorded then.
        delay = self._gate.count_deferred()
        self._throttle.record_volume_delay(delay, now, bucket, amount=0)
        self._throttle.mute_for_volumes(delay, now, bucket, None)
        return DEFER

    def _refuse_paused(self, request: Request, now: float) -> Verdict:
        self._client.place.leave_queue()
        if not request.whole:
            return COLLECT_PRODUCE
        if self._waits_for_turn(request):
            return NEXT_TURN
        frame, header = request.cut()
        topics = scan_whole(header.api_version, frame, header.body_offset).topics
        self.forget_collected()
        self.gaps.note(frame, topics)
        delay = self._gate.count_refused()
        self._throttle.record_volume_delay(delay, now, self._client.bucket(_KIND, now), request.size)
        self._refused += 1
        # Counted before the client has the answer: what it sends after that has to wait for the end of the mute.
        self._unread = self._wire.unread_client_bytes()
        if self._refused > MAX_REFUSED:  # at once: a client whose chunks all end inside a request is never settled
            self._mute_refused(now)
        return Answer(
            produce.refuse(
                header.api_version,
                header.correlation_id,
                indexes_of(topics),
                ErrorCode.NOT_ENOUGH_REPLICAS,
                PAUSED_MESSAGE,
                throttle_time_ms(delay),
            )
        )

    def settle(self, now: float, *, held: bool) -> None:
        """Finish a chunk, at whose end no request is still arriving. With `held`, some requests are not answered yet."""
        if self._refused and not held:
            self._mute_refused(now)

    def _mute_refused(self, now: float) -> None:
        """Mute the client once all of its requests that had arrived during a pause are answered.

        Requests in the socket were sent before the client knew of the pause. If each of them waited for a mute of its own, a
        client with many requests in flight would run into its request timeout.
        """
        unread, self._unread = self._unread, -1
        if unread < 0:
            unread = self._wire.unread_client_bytes()
        if unread == 0 or self._refused > MAX_REFUSED:
            self._refused = 0
            if self._gate.paused:
                self._throttle.mute_for_volumes(self._gate.delay, now, self._client.bucket(_KIND, now), None)

    # A connection that Weir closes.

    def wants_no_answer(self, request: Request, now: float) -> bool:
        """True for a request that its client takes for done once it is sent, if the broker may have it."""
        if request.header.api_key != _PRODUCE or self._connection.authentication_gate is not None:
            return False
        acks, acks_end = _acks(request)
        if acks != 0 or not self._gate.paused:
            return acks == 0
        self._client.use(request.header.client_id, now)
        return not self._is_gated(request, acks_end)

    # Exemptions.

    def _is_free(self, request: Request, now: float) -> bool:
        """True if the request would be charged to no client, because its only topic is one of Weir's own."""
        if not self._own_topics.keys:
            return False
        _, acks_end = _acks(request)
        return self._is_own(request, acks_end) and self._own_topics.is_free(request.size, now)

    def _is_gated(self, request: Request, acks_end: int) -> bool:
        """True if the volume quotas hold for this request."""
        return not self._client.exempt_from(VOLUMES) and not self._is_own(request, acks_end)

    def _is_own(self, request: Request, acks_end: int) -> bool:
        """True if the request's only topic is one of Weir's own."""
        if not self._own_topics.keys:
            return False
        version = request.header.api_version
        topic = produce.only_topic(request.data, acks_end, request.end, request.after, version)
        return self._own_topics.is_own(topic)


def begins_unanswered(data: bytes) -> bool:
    """True if the bytes begin with a Produce with acks=0."""
    end = len(data)
    try:
        header = parse_request_header(data, LENGTH_BYTES, end, end)
        return header.api_key == _PRODUCE and produce.peek_acks(data, header.body_offset, end, header.api_version)[0] == 0
    except (Incomplete, ProtocolError):
        return False


def _wanting_answer(request: Request, frame: bytes) -> bytes:
    """The beginning of the request's frame, with acks=1."""
    return produce.wanting_answer(frame, _acks(request)[1] - request.pos)


def _acks(request: Request) -> tuple[int, int]:
    """The request's acks, and the offset behind them."""
    return produce.peek_acks(request.data, request.header.body_offset, request.end, request.header.api_version)
