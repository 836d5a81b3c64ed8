"""The hot path: a Produce request that begins like the connection's previous one is charged and forwarded unparsed."""

from typing import Final

from librt.strings import read_i32_be

from gateway.proxy.channel_throttle import ChannelThrottle
from gateway.proxy.handler import Request
from gateway.proxy.identity import Client
from gateway.proxy.in_flight import Entry, InFlight
from gateway.quotas.bucket import Bucket
from gateway.quotas.own_topics import OwnTopics, mark_at
from protocol.api_keys import ApiKey
from protocol.bodies.produce import TIMEOUT_BYTES
from protocol.cursor import LENGTH_BYTES

_PRODUCE: Final = int(ApiKey.PRODUCE)
_PREFIX_AT: Final = 12
"""Behind the length, the API key, the version and the correlation id."""


class FastPath:
    """The template of one connection's Produce requests, and the one that is arriving.

    The requests of a connection are alike from the client-id to the end of acks. `key` is their API key and version, `_prefix`
    those bytes, and `generation` the quota engine's when the client's `hot_buckets` were found. `answered` is False for acks=0.
    `_measured` are the buckets of each `Entry`.

    A request whose only topic is one of Weir's own is charged elsewhere: one of `_own` stands behind its timeout. `_own_bytes`
    behind acks are enough to see that. `_own_marks` has 1 for each byte that such a request may have at `_own_mark_at`.
    """

    __slots__ = (
        "_client", "_counts", "_entry", "_in_flight", "_max_bytes", "_measured", "_min_bytes", "_own", "_own_bytes",
        "_own_mark_at", "_own_marks", "_own_topics", "_prefix", "_size", "_throttle", "answered", "arriving", "generation",
        "key",
    )  # fmt: skip

    def __init__(
        self,
        client: Client,
        throttle: ChannelThrottle,
        in_flight: InFlight,
        counts: list[int],
        own_topics: OwnTopics,
        max_bytes: int,
    ) -> None:
        # mypyc stores attributes in this order: those of the hot path come first (docs/decisions/040-cache-lines.md).
        # The request of which more is to come, until all of it is charged: its buckets, its entry (None: acks=0), its length.
        self.arriving: tuple[Bucket, ...] = ()
        self.generation = -1
        self._client = client
        self._measured: tuple[Bucket, ...] = ()
        self.key = -1
        self._min_bytes = 0
        self._max_bytes = max_bytes
        self._prefix = b""
        self._own_bytes = 0
        self._own_mark_at = 0
        self.answered = True
        self._in_flight = in_flight
        self._counts = counts
        self._throttle = throttle
        self._own_topics = own_topics
        self._own: tuple[bytes, ...] = ()
        self._own_marks = b""
        self._entry: Entry | None = None
        self._size = 0

    def take(self, chunk: bytes, pos: int, now: float) -> int:
        """Charge the requests from `pos` on that are like the template; returns the offset behind them.

        Stops behind a request that goes over its quota.
        """
        end = len(chunk)
        buckets, measured = self._client.hot_buckets, self._measured
        key, min_bytes, max_bytes = self.key, self._min_bytes, self._max_bytes
        prefix = self._prefix
        prefix_end = _PREFIX_AT + len(prefix)
        own_bytes = self._own_bytes
        head_end = prefix_end + own_bytes
        mark_at = prefix_end + self._own_mark_at
        answered = self.answered
        over = False
        while end - pos >= head_end:
            size = read_i32_be(chunk, pos)
            if (
                read_i32_be(chunk, pos + 4) != key
                or not min_bytes <= size <= max_bytes
                or chunk[pos + _PREFIX_AT : pos + prefix_end] != prefix
                or (own_bytes and self._own_marks[chunk[pos + mark_at]] and self._is_own_at(chunk, pos + prefix_end))
            ):
                break
            entry: Entry | None = None
            if answered:
                entry = Entry(read_i32_be(chunk, pos + 8), key, now, None, measured)
                self._in_flight.append(entry)
            self._counts[_PRODUCE] += 1
            pos += LENGTH_BYTES + size
            if pos > end:
                self.begin(buckets, entry, size, end - pos + size, now)
                break
            for bucket in buckets:
                cost = bucket.per_message + bucket.per_byte * size
                delay, enforced = bucket.charge(cost, now)
                if delay > 0.0:
                    self._throttle.start((delay, enforced), now, bucket, entry, cost)
                    over = True
            if over:
                break
        return pos

    def learn(self, request: Request, acks: int, acks_end: int) -> None:
        """Make a request the template of the next ones. Its acks end at the offset `acks_end`."""
        version = request.header.api_version
        self._measured = request.entry.buckets
        self.key = request.entry.key
        self._prefix = request.data[request.pos + _PREFIX_AT : acks_end]
        self._min_bytes = acks_end - request.pos - LENGTH_BYTES
        self.answered = acks != 0
        self.generation = self._client.generation
        own = self._own_topics.prefixes(version)
        if own != self._own:
            self._own = own
            self._own_bytes = TIMEOUT_BYTES + max([len(prefix) for prefix in own], default=-TIMEOUT_BYTES)
            self._own_marks = self._own_topics.marks(version)
            self._own_mark_at = mark_at(version) + TIMEOUT_BYTES

    def begin(self, buckets: tuple[Bucket, ...], entry: Entry | None, size: int, amount: int, now: float) -> None:
        """Charge a request of `size` bytes for its first `amount` bytes.

        The length that a header claims costs nothing: the rest is charged as it arrives.
        """
        self.arriving, self._entry, self._size = buckets, entry, size
        for bucket in buckets:
            bucket.record(bucket.per_message + bucket.per_byte * amount, now)

    def arrived(self, amount: int, now: float, *, whole: bool) -> None:
        """Charge the next `amount` bytes of the arriving request. It can go over its quota only when it is `whole`."""
        buckets, entry = self.arriving, self._entry
        if not whole:
            for bucket in buckets:
                bucket.record(bucket.per_byte * amount, now)
            return
        self.arriving, self._entry = (), None
        # A broker may answer a request before all of it has arrived. No response is left then that could end the mute.
        pending = entry is not None and len(self._in_flight) > 0 and self._in_flight[-1] is entry
        for bucket in buckets:
            delay, enforced = bucket.charge(bucket.per_byte * amount, now)
            if delay > 0.0:
                cost = bucket.per_message + bucket.per_byte * self._size
                self._throttle.start((delay, enforced), now, bucket, entry if pending else None, cost)

    def _is_own_at(self, chunk: bytes, acks_end: int) -> bool:
        return chunk.startswith(self._own, acks_end + TIMEOUT_BYTES)
