"""Fetch under a quota: its admission, the charge for its answer, and the empty answer of a throttled client."""

from typing import Final

from gateway.proxy.channel_throttle import ChannelThrottle
from gateway.proxy.handler import DEFER, FORWARD, Answer, Replace, Request, Verdict
from gateway.proxy.identity import Client, is_enforced, is_limited
from gateway.proxy.in_flight import ChargedFetch, Entry
from gateway.quotas.bucket import Bucket
from gateway.quotas.kinds.fetch import KIND
from gateway.quotas.line import Consumer
from protocol.api_keys import APIS, ApiKey
from protocol.bodies import fetch
from protocol.cursor import INT32, LENGTH_BYTES
from protocol.error_codes import ErrorCode
from protocol.errors import Incomplete
from protocol.throttle import read_throttle, throttle_offset

FETCH_HEAD_BYTES: Final = 24
"""The most that stands before the first topic of a Fetch response, its length included."""

THROTTLE_TO_SESSION_END: Final = 10
"""Bytes of a Fetch response's throttle time, error code and session id."""

LEAST_THROTTLE_MS: Final = 1
"""Java and kafka-python take an empty answer to a full Fetch for an error if it has no throttle time."""

_UNKNOWN_BATCH_BYTES: Final = 1 << 20
"""Brokers take batches of this size, unless they are configured otherwise."""

_FETCH: Final = int(ApiKey.FETCH)
_KIND: Final = KIND.name


class FetchHandler:
    """Handles the Fetch requests of one connection, and charges their answers and those of its ShareFetch requests."""

    __slots__ = ("_client", "_ended_session", "_requested", "_throttle", "answer_awaited", "consumers", "share_pending")

    def __init__(self, client: Client, throttle: ChannelThrottle) -> None:
        self._client = client
        self._throttle = throttle
        self.consumers = [Consumer()]  # one for each bucket, see `consumers_of`
        self._requested = 0  # bytes, by all unanswered Fetches under a quota
        self._ended_session = 0  # a session that the broker may keep although its client has forgotten it
        self.share_pending: ChargedFetch | None = None  # the unanswered ShareFetch under a quota
        self.answer_awaited = False  # the next Fetch or ShareFetch waits for one of the answers

    def handle(self, request: Request, now: float) -> Verdict:
        """Admit a Fetch as far as the quota goes. A pipelined one waits while those before it may use the whole balance."""
        header = request.header
        if self._requested > 0:
            self._client.use(header.client_id, now)
            for bucket in self._client.buckets(_KIND, now):
                if bucket.exhausted_by(self._requested, now):
                    self.answer_awaited = True
                    return DEFER
            self.answer_awaited = False
        version = header.api_version
        head = fetch.peek_fetch(request.data, header.body_offset, request.end, version)
        self._client.use(header.client_id, now)
        buckets = self._client.buckets(_KIND, now)
        consumers = self.consumers_of(buckets)
        closes_session = version >= fetch.SESSION_SINCE and head.session_epoch == -1 and not head.has_topics
        # A session outlives its connection. On a new one its Fetch waits, as the broker may answer with a whole batch.
        waits = head.session_epoch > 0 and consumers[0].unknown
        if not closes_session and _over_quota(buckets, consumers, self._throttle, request, now, answered=not waits):
            if waits:
                return DEFER
            if head.session_epoch <= 0:  # as Kafka's `FullFetchContext.getThrottledResponse`, which begins no session
                self._ended_session = head.session_id or self._ended_session
                return Answer(fetch.empty_response(version, header.correlation_id, 0, LEAST_THROTTLE_MS))
            if not _may_drop(buckets, now):
                # Clients then begin a session with a full Fetch (KIP-227). During a debt, it costs the broker nothing.
                self._ended_session = head.session_id
                answer = fetch.empty_response(
                    version, header.correlation_id, 0, LEAST_THROTTLE_MS, ErrorCode.INVALID_FETCH_SESSION_EPOCH
                )
                return Answer(answer)
            request.entry.special = muted = ChargedFetch(muted=True, in_session=True)
            request.entry.buckets = buckets
            muted.dropped = consumers[0].batch_bytes or _UNKNOWN_BATCH_BYTES
            _drop(buckets, muted.dropped, now)
            return _with_limits(request, head, max_wait=0, min_bytes=0, max_bytes=1)
        request.entry.special = charged = ChargedFetch(behind=self._client.behind, in_session=head.session_epoch > 0)
        request.entry.buckets = buckets
        consumer = consumers[0]
        allowance = _allowance(buckets, consumer.batch_bytes, now, first=consumer.unknown, requested=self._requested)
        if allowance is None:
            return FORWARD
        if not closes_session:
            requested = max(min(head.max_bytes, allowance), consumer.batch_bytes)  # the first batch comes whole
            charged.reserve(buckets, consumers, requested, now)
            charged.requested = requested if consumer.batch_bytes else max(requested, _UNKNOWN_BATCH_BYTES)
            self._requested += charged.requested
        return _within(allowance, request, head, self._session_to_end(head, version))

    def _session_to_end(self, head: fetch.FetchHead, version: int) -> int:
        """The session that a forwarded Fetch has to name, so that the broker ends it; 0: none.

        A full Fetch ends the session that it names (Kafka's `FetchManager.newContext`). A forgotten session would otherwise
        take one of the broker's 1000 places. Clients forget a session's id with an empty answer to a full Fetch.
        """
        ended = self._ended_session
        if ended == 0 or version < fetch.SESSION_SINCE:
            return 0
        full = head.session_epoch <= 0
        if full or head.session_id == ended:  # some clients continue it
            self._ended_session = 0
        return ended if full and head.session_id == 0 else 0

    def charge(self, special: ChargedFetch, chunk: bytes, pos: int, after: int, entry: Entry, now: float) -> bytes | None:
        """Charge an answer: four bytes and its body (`FetchResponse.sizeOf`). Returns the frame that replaces it.

        None: the client gets the broker's answer. Raises Incomplete, before any effect, if its head has not arrived.
        """
        if after > len(chunk):
            _require_head(chunk, pos, len(chunk), entry)
        api_key, version = entry.api_key, entry.version
        if special.muted and api_key == _FETCH:
            return self._charge_throttled(special, chunk, pos, after, entry, now)
        if api_key != _FETCH:
            self._keep_locks(fetch.acquisition_lock_ms(chunk, pos, min(after, len(chunk)), version), special, now)
        special.size = size = _size(pos, after, entry)
        special.release()
        self._requested -= special.requested
        buckets = entry.buckets
        if special.muted:
            for bucket in buckets:
                bucket.record(size, now)
            return None
        consumers = self.consumers_of(buckets)
        limited = is_limited(buckets)
        if api_key != _FETCH:
            self._end_share_fetch(special, size if limited else 0)
        elif limited:
            end = min(after, len(chunk))
            records = fetch.find_records(chunk, pos, end, version)
            self._note(size if records >= 0 or after > end else 0, fetch.batch_size(chunk, records, end))
        emptied = False
        for index, bucket in enumerate(buckets):
            if emptied and not bucket.policy.enforce:
                # Shadow limits are behind all others, and count no response that is not sent.
                buckets = buckets[:index]
                break
            delay, enforced = bucket.charge_fetch(consumers[index], size, now)
            if delay > 0.0:
                self._throttle.start((delay, enforced), now, bucket, entry, size)
                if enforced and api_key == _FETCH and bucket.takes_back:
                    emptied = _may_have_records(chunk, pos, after, version)
        if not emptied:
            return None
        for bucket in buckets:
            bucket.record(-size, now)
        return self._without_records(chunk, pos, after, entry, now, in_session=special.in_session)

    def follows_lag(self, api_key: int) -> bool:
        """True for the answer to a Fetch if the client's lag decides about its group."""
        return api_key == _FETCH and len(self._client.lag_limits) > 0

    def note_lag(self, special: ChargedFetch, lag: int, now: float) -> None:
        """Follow the lag in records of a whole answer that was charged; -1 for an answer without records."""
        if lag >= 0:
            self._client.note_lag(lag, special.size, special.behind, now)

    def consumers_of(self, buckets: tuple[Bucket, ...]) -> list[Consumer]:
        """The connection's consumer of each bucket, as each bucket has turns of its own. The list may be longer."""
        consumers = self.consumers
        while len(consumers) < len(buckets):
            further = Consumer()
            further.batch_bytes, further.expected = consumers[0].batch_bytes, consumers[0].expected
            consumers.append(further)
        return consumers

    def _note(self, expected: int, batch_bytes: int) -> None:
        """Note the size of an answer, 0 without records, and of its first batch, 0 if there is none."""
        for consumer in self.consumers:
            consumer.expected = expected
            consumer.batch_bytes = batch_bytes or consumer.batch_bytes

    def _end_share_fetch(self, special: ChargedFetch, expected: int) -> None:
        """Let the next ShareFetch go to the broker. `expected` is the size of its answer, 0 without a quota."""
        if special is self.share_pending:
            # Even if the bucket has lost its quota meanwhile: the next ShareFetch may be charged to another bucket.
            self.share_pending = None
            if expected > 0:
                self._note(expected, 0)

    def _keep_locks(self, lock_ms: int, special: ChargedFetch, now: float) -> None:
        if lock_ms > 0:
            self._throttle.keep_locks(lock_ms / 1000.0, now, acquired=not special.muted)

    def _charge_throttled(
        self, special: ChargedFetch, chunk: bytes, pos: int, after: int, entry: Entry, now: float
    ) -> bytes | None:
        _require_session_id(chunk, pos, min(after, len(chunk)), entry)
        drops = _may_have_records(chunk, pos, after, entry.version)
        _drop(entry.buckets, (_size(pos, after, entry) if drops else 0) - special.dropped, now)
        if drops:
            return self._without_records(chunk, pos, after, entry, now, in_session=True)
        for bucket in entry.buckets:
            bucket.record(_size(pos, after, entry), now)
        return None

    def _without_records(self, chunk: bytes, pos: int, after: int, entry: Entry, now: float, *, in_session: bool) -> bytes:
        """The answer that replaces one with records. If that is whole, it keeps the other partitions, and they are charged.

        A broker sends an idle partition's high watermark or error within a session only once. Clients take only a full answer,
        or an empty one, for a request that begins a session or has none.
        """
        idle = fetch.idle_partitions(chunk[pos:after], entry.version) if in_session and after <= len(chunk) else b""
        if not idle:
            return self._emptied(chunk, pos, min(after, len(chunk)), entry, now, in_session=in_session)
        for bucket in entry.buckets:
            bucket.record(_size(0, len(idle), entry), now)
        return idle

    def _emptied(self, chunk: bytes, pos: int, end: int, entry: Entry, now: float, *, in_session: bool) -> bytes:
        """The answer without partitions and with the same session id that replaces one over the quota."""
        version = entry.version
        session_id, theirs = 0, 0
        offset = throttle_offset(ApiKey.FETCH, version, chunk, pos, end)
        if offset >= 0:
            theirs = read_throttle(chunk, offset)
        if version >= fetch.SESSION_SINCE:
            if offset + THROTTLE_TO_SESSION_END > end:
                raise Incomplete
            session_id = INT32.unpack_from(chunk, offset + 6)[0]
        if not in_session:
            self._ended_session = session_id  # clients begin another session after an empty answer to a full Fetch
        left = max(theirs, self._throttle.time_left_ms(now), LEAST_THROTTLE_MS)
        return fetch.empty_response(version, entry.correlation_id, session_id, left)


class ShareFetchHandler:
    """Handles the ShareFetch requests of one connection (KIP-932).

    They carry acknowledgements, so they can't be answered empty as a Fetch can. Nor may these wait for a debt, as the locks of
    acquired records expire after 15 s or more. So the broker gets them in a request for no records.
    """

    __slots__ = ("_client", "_fetch", "_throttle")

    def __init__(self, client: Client, throttle: ChannelThrottle, fetch_handler: FetchHandler) -> None:
        self._client = client
        self._throttle = throttle
        self._fetch = fetch_handler

    def handle(self, request: Request, now: float) -> Verdict:
        """Wait for the ShareFetch before it. While the bucket is in debt, acquire no records, or wait to begin a session.

        The end of a session never waits. Nor does a renewal of acquisition locks, which would expire meanwhile.
        """
        header = request.header
        head = fetch.peek_share_fetch(request.data, header.body_offset, request.end, request.after, header.api_version)
        self._client.use(header.client_id, now)
        buckets = self._client.buckets(_KIND, now)
        consumers = self._fetch.consumers_of(buckets)
        gets_records = head.session_epoch != -1 and not head.renews
        if is_limited(buckets) and gets_records:
            if self._fetch.share_pending is not None and is_enforced(buckets):
                self._fetch.answer_awaited = True
                return DEFER
            acknowledges = head.session_epoch > 0 and head.max_records_offset >= 0
            if _over_quota(buckets, consumers, self._throttle, request, now, answered=acknowledges):
                if not acknowledges:
                    return DEFER
                request.entry.special = ChargedFetch(muted=True)
                request.entry.buckets = buckets
                return Replace(fetch.without_records(request.data, request.pos, request.end, head))
        request.entry.special = charged = ChargedFetch()
        request.entry.buckets = buckets
        allowance = _allowance(buckets, 0, now, first=consumers[0].unknown)
        if allowance is None or not gets_records:
            return FORWARD
        self._fetch.share_pending = charged
        charged.reserve(buckets, consumers, max(min(head.max_bytes, allowance), 0), now)  # clients may send any number
        return _within(allowance, request, head)


def _size(pos: int, after: int, entry: Entry) -> int:
    """The bytes of an answer as Kafka counts them."""
    tagged_header = entry.version >= APIS[entry.api_key].flexible_since
    return after - pos - LENGTH_BYTES - (1 if tagged_header else 0)


def _require_head(chunk: bytes, pos: int, end: int, entry: Entry) -> None:
    """Raise Incomplete if the answer's head ends behind `end`. The later steps need no more, so no answer is charged twice."""
    if end - pos < FETCH_HEAD_BYTES:
        raise Incomplete
    _require_session_id(chunk, pos, end, entry)


def _require_session_id(chunk: bytes, pos: int, end: int, entry: Entry) -> None:
    if throttle_offset(entry.api_key, entry.version, chunk, pos, end) + THROTTLE_TO_SESSION_END > end:
        raise Incomplete


def _drop(buckets: tuple[Bucket, ...], amount: int, now: float) -> None:
    """Note bytes that the broker sends for a client in debt, see `Line.drop`."""
    for bucket in buckets:
        if bucket.meter is not None and bucket.policy.enforce:
            bucket.line.drop(amount, bucket.meter, now)


def _may_drop(buckets: tuple[Bucket, ...], now: float) -> bool:
    """True if each bucket's second budget allows the broker to send a batch that is dropped, see `Line.may_drop`."""
    for bucket in buckets:
        if bucket.meter is not None and bucket.policy.enforce and not bucket.line.may_drop(bucket.meter, now):
            return False
    return True


def _may_have_records(chunk: bytes, pos: int, after: int, version: int) -> bool:
    """True for an answer with records, and for one that has arrived only in part. An error has none."""
    if fetch.top_level_error(chunk, pos, min(after, len(chunk)), version) != 0:
        return False
    return after > len(chunk) or fetch.find_records(chunk, pos, after, version) >= 0


def _allowance(buckets: tuple[Bucket, ...], batch_bytes: int, now: float, *, first: bool, requested: int = 0) -> int | None:
    """The smallest allowance of the buckets, see `Bucket.fetch_allowance`. None: no bucket has a maximum."""
    least: int | None = None
    for bucket in buckets:
        allowance = bucket.fetch_allowance(batch_bytes, now, first=first, requested=requested)
        if allowance is not None and (least is None or allowance < least):
            least = allowance
    return least


def _over_quota(
    buckets: tuple[Bucket, ...],
    consumers: list[Consumer],
    throttle: ChannelThrottle,
    request: Request,
    now: float,
    *,
    answered: bool,
) -> bool:
    """Mute the client if one of its buckets is in debt. The mute begins before the request unless that is `answered`."""
    over = False
    for index, bucket in enumerate(buckets):
        delay, enforced = bucket.admit_fetch(consumers[index], now)
        if delay > 0.0:
            if answered:
                throttle.start((delay, enforced), now, bucket, request.entry)
            else:
                throttle.defer((delay, enforced), now, bucket, request.header.api_key)
            over = over or enforced
    return over


def _within(allowance: int, request: Request, head: fetch.FetchHead, session_id: int = 0) -> Verdict:
    """The request with a maximum of `allowance` bytes. A `session_id` other than 0 replaces its own."""
    if head.max_bytes <= allowance and session_id == 0:
        return FORWARD
    max_bytes, min_bytes = min(head.max_bytes, allowance), min(head.min_bytes, allowance)
    return _with_limits(request, head, max_wait=head.max_wait, min_bytes=min_bytes, max_bytes=max_bytes, session_id=session_id)


def _with_limits(
    request: Request, head: fetch.FetchHead, *, max_wait: int, min_bytes: int, max_bytes: int, session_id: int = 0
) -> Replace:
    """The request with other limits (ms, bytes) and of the same length, see `fetch.with_limits`."""
    return Replace(
        fetch.with_limits(
            request.data,
            request.pos,
            request.end,
            head,
            max_wait=max_wait,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            session_id=session_id,
        )
    )
