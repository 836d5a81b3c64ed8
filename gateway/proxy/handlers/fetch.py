"""Fetch under a quota: who may begin one, what its answer costs, and what a throttled client gets instead of records."""

from struct import Struct
from typing import Final

from gateway.proxy.channel_throttle import ChannelThrottle
from gateway.proxy.identity import Client
from gateway.proxy.in_flight import ChargedFetch, Entry, InFlight, ThrottledFetch
from gateway.quotas.line import Consumer
from protocol.api_keys import APIS, ApiKey
from protocol.bodies import fetch
from protocol.errors import Incomplete
from protocol.headers import RequestHeader
from protocol.throttle import read_throttle, throttle_offset

FETCH_HEAD_BYTES: Final = 24
"""The most that stands before the first topic of a Fetch response, its length included."""

THROTTLE_TO_SESSION_END: Final = 10
"""Bytes of a Fetch response's throttle time, error code and session id."""

_LEAST_THROTTLE_MS: Final = 1
"""Java and kafka-python take an empty answer to a full Fetch for an error if it has no throttle time."""

_UNKNOWN_BATCH_BYTES: Final = 1 << 20
"""Brokers take batches of this size, unless they are configured otherwise."""

_FETCH: Final = int(ApiKey.FETCH)
_INT32 = Struct(">i")


class Fetches:
    """The Fetch requests of one connection and their answers."""

    __slots__ = ("_asked", "_client", "_consumer", "_in_flight", "_sharing", "_throttle", "awaited")

    def __init__(self, client: Client, throttle: ChannelThrottle, in_flight: InFlight) -> None:
        self._client = client
        self._throttle = throttle
        self._in_flight = in_flight
        self._consumer = Consumer()
        self._asked = 0  # bytes, by all unanswered Fetches under a quota
        self._sharing = False  # a ShareFetch under a quota is unanswered
        self.awaited = False  # the next Fetch waits for one of their answers

    def has_to_wait(self, header: RequestHeader, now: float) -> bool:
        """A pipelined Fetch waits while those before it may use the whole balance. (Kafka takes one at a time.)"""
        if self._asked == 0:
            return False
        self._client.use(header.client_id, now)
        self.awaited = self._client.bucket("fetch", now).full(self._asked, now)
        return self.awaited

    def share_has_to_wait(self, data: bytes, header: RequestHeader, after: int, now: float) -> bool:
        """Whether a ShareFetch under a quota has to wait unforwarded: for the one before it, or while its bucket is in debt.

        It carries acknowledgements, so it can't be answered empty as a Fetch can. One that only ends its session never waits.
        """
        head = fetch.peek_share_fetch(data, header.body_offset, min(after, len(data)), after)
        self._client.use(header.client_id, now)
        bucket = self._client.bucket("fetch", now)
        if bucket.meter is None or head.session_epoch == -1:
            return False
        if self._sharing:
            self.awaited = True
            return True
        delay, enforced = bucket.refuse_fetch(self._consumer, now)
        if delay > 0.0:
            self._throttle.defer((delay, enforced), now, bucket, header.api_key)
        return enforced

    def admit_share(self, data: bytes, header: RequestHeader, after: int, now: float) -> bytes:
        """Note a ShareFetch that is forwarded; returns the data, with a lower max_bytes where the quota leaves less."""
        head = fetch.peek_share_fetch(data, header.body_offset, min(after, len(data)), after)
        bucket = self._client.bucket("fetch", now)
        charged = ChargedFetch(bucket)
        self._in_flight.append(Entry(header.correlation_id, header.api_key << 16 | header.api_version, now, charged, bucket))
        consumer = self._consumer
        allowance = bucket.fetch_allowance(0, now, first=consumer.unknown)
        if allowance is None or head.session_epoch == -1:
            return data
        self._sharing = True
        charged.promised = bucket.reserve(consumer, min(head.max_bytes, allowance), now)
        charged.generation = bucket.line.generation
        if head.max_bytes <= allowance:
            return data
        return fetch.with_limits(
            data, head, max_wait=head.max_wait, min_bytes=min(head.min_bytes, allowance), max_bytes=allowance
        )

    def admit(self, data: bytes, header: RequestHeader, after: int, now: float) -> tuple[bytes, bool]:
        """Admit a Fetch request as far as the quota goes; returns the data, perhaps changed, and whether to forward it. If
        not, it is answered here, in its turn."""
        version = header.api_version
        head = fetch.peek_fetch(data, header.body_offset, min(after, len(data)), version)
        self._client.use(header.client_id, now)
        bucket = self._client.bucket("fetch", now)
        key = _FETCH << 16 | version
        closes_session = version >= fetch.SESSION_SINCE and head.session_epoch == -1 and not head.has_topics
        delay, enforced = (0.0, False) if closes_session else bucket.refuse_fetch(self._consumer, now)
        if not enforced and delay > 0.0:
            self._throttle.start((delay, enforced), now, bucket, Entry(header.correlation_id, key, now))
        elif enforced:
            forward = head.session_epoch != -1
            entry = Entry(header.correlation_id, key, now, ThrottledFetch(forward))
            self._in_flight.append(entry)
            self._throttle.start((delay, enforced), now, bucket, entry)
            if not forward:
                return data, False
            return fetch.with_limits(data, head, max_wait=0, min_bytes=0, max_bytes=1), True
        charged = ChargedFetch(bucket)
        self._in_flight.append(Entry(header.correlation_id, key, now, charged, bucket))
        consumer = self._consumer
        allowance = bucket.fetch_allowance(consumer.batch_bytes, now, first=consumer.unknown, asked=self._asked)
        if allowance is None:
            return data, True
        if not closes_session:
            asked = max(min(head.max_bytes, allowance), consumer.batch_bytes)  # the first batch comes whole
            charged.promised = bucket.reserve(consumer, asked, now)
            charged.generation = bucket.line.generation
            charged.asked = asked if consumer.batch_bytes else max(asked, _UNKNOWN_BATCH_BYTES)
            self._asked += charged.asked
        if head.max_bytes <= allowance:
            return data, True
        return fetch.with_limits(
            data, head, max_wait=head.max_wait, min_bytes=min(head.min_bytes, allowance), max_bytes=allowance
        ), True

    def charge(self, special: ChargedFetch, chunk: bytes, pos: int, after: int, entry: Entry, now: float) -> bool:
        """Charge a Fetch response: four bytes and its body (`FetchResponse.sizeOf`). False: it is not to be sent."""
        api_key, version = entry.api_key, entry.version
        size = after - pos - 4
        if version >= APIS[api_key].flexible_since:
            size -= 1
        bucket = special.bucket
        special.keep_promise()
        self._asked -= special.asked
        if api_key != _FETCH:
            self._sharing = False  # also if its bucket has lost its quota: another bucket's quota may hold for the next one
        if bucket.meter is None:
            delay, enforced = bucket.charge(size, now)
        elif api_key != _FETCH:
            self._consumer.expected = size
            delay, enforced = bucket.charge_fetch(self._consumer, size, now)
        else:
            end = min(after, len(chunk))
            records = fetch.find_records(chunk, pos, end, version)
            consumer = self._consumer
            consumer.batch_bytes = fetch.batch_size(chunk, records, end) or consumer.batch_bytes
            consumer.expected = size if records >= 0 or after > end else 0
            delay, enforced = bucket.charge_fetch(consumer, size, now)
        if delay == 0.0:
            return True
        self._throttle.start((delay, enforced), now, bucket, entry, size)
        return not (enforced and api_key == _FETCH and bucket.take_back(size, now))

    def emptied(self, chunk: bytes, pos: int, end: int, entry: Entry, now: float) -> bytes:
        """In place of a throttled Fetch's answer, one without partitions and with the same session id."""
        version = entry.version
        session_id, theirs = 0, 0
        offset = throttle_offset(ApiKey.FETCH, version, chunk, pos, end)
        if offset >= 0:
            theirs = read_throttle(chunk, offset)
        if version >= fetch.SESSION_SINCE:
            if offset + THROTTLE_TO_SESSION_END > end:
                raise Incomplete
            session_id = _INT32.unpack_from(chunk, offset + 6)[0]
        left = max(theirs, self._throttle.time_left_ms(now), _LEAST_THROTTLE_MS)
        return fetch.empty_response(version, entry.correlation_id, session_id, left)

    def empty(self, entry: Entry, now: float) -> bytes:
        """The answer to a throttled Fetch that belongs to no session, of which the broker has not been asked."""
        left = max(self._throttle.time_left_ms(now), _LEAST_THROTTLE_MS)
        return fetch.empty_response(entry.version, entry.correlation_id, 0, left)
