"""One connection's throttle: the time of its mute, and the conditions to read it again (KIP-219)."""

from collections.abc import Mapping, Set
from math import inf
from typing import Final, Protocol

from gateway.proxy.counters import Counters
from gateway.proxy.in_flight import Entry
from gateway.proxy.membership import Membership
from gateway.proxy.states import Mute, MuteEvent, MuteState
from gateway.proxy.wire import Origin, Recorder, Wire
from gateway.quotas.bucket import Bucket, QuotaVerdict
from gateway.quotas.meter import throttle_time_ms
from gateway.quotas.spared_members import shorten
from protocol.api_keys import ApiKey

_PRODUCE: Final = int(ApiKey.PRODUCE)
_SHARE_FETCH: Final = int(ApiKey.SHARE_FETCH)

TIMER_SLACK_SECONDS: Final = 0.001
"""Timers of the event loop count whole milliseconds, so they may be early by as much."""

KERNEL_TICK_SECONDS: Final = 0.01
"""The kernel counts a connection's silence in ticks. The longest are of this length (CONFIG_HZ=100)."""


class ProducerDelay(Protocol):
    """Mutes producers for another reason than their quotas: each for `delay` seconds."""

    delay: float


class ChannelThrottle:
    """Applies Kafka's mute states to a connection with several requests in flight.

    Kafka reads one request at a time; here many may be in flight when one of them goes over its quota. That one (`_entry`)
    mutes the connection; others that go over meanwhile make the time longer. `active` is True from the mute to the unmute,
    and while the connection is held. Only a muted connection has a `_bucket`: the one with the longest delay. `_ends` has the
    ends of all buckets' delays. When the longest is forgiven, the mute may last for another one.
    """

    __slots__ = (
        "_bucket", "_counters", "_ends", "_entry", "_firm_until", "_gate", "_gated", "_limit", "_locks", "_membership", "_mute",
        "_recorder", "_unread_when_answered", "_wire", "active", "origin", "until",
    )  # fmt: skip

    def __init__(
        self, wire: Wire, counters: Counters, recorder: Recorder | None = None, gate: ProducerDelay | None = None
    ) -> None:
        self._wire = wire
        self._counters = counters
        self._recorder = recorder
        self._gate = gate
        self._gated = False  # the gate has set `until`, not a quota
        self._firm_until = 0.0  # the end of the mutes that are never shortened
        self._membership: Membership | None = None
        self._locks: Membership | None = None  # as for members, so that a share consumer's locks do not expire (KIP-932)
        self.origin = Origin()
        self._mute = Mute()
        self._entry: Entry | None = None
        self._bucket: Bucket | None = None
        self._ends: dict[Bucket, float] | None = None
        self._limit: float | None = None
        self._unread_when_answered = -1
        self.active = False
        self.until = 0.0

    def charge(self, buckets: tuple[Bucket, ...], size: int, now: float, entry: Entry | None, *, paid: int = 0) -> None:
        """Charge each bucket for a request of `size` bytes by its kind's figures, and mute the client if that is too much.

        `paid` of the bytes are charged already. `entry` is as for `start`.
        """
        for bucket in buckets:
            cost = bucket.per_message + bucket.per_byte * size
            verdict = bucket.charge(cost - bucket.per_byte * paid, now)
            if verdict[0] > 0.0:
                self.start(verdict, now, bucket, entry, cost)

    def start(self, verdict: QuotaVerdict, now: float, bucket: Bucket, entry: Entry | None, amount: int = 0) -> None:
        """Record a bucket's verdict, and mute the client if the verdict is enforced.

        `entry` is the request that went over by using `amount`. It is None for a Produce that gets no answer (acks=0).
        """
        self._exceeded(verdict, now, bucket, _PRODUCE if entry is None else entry.api_key, entry, amount)

    def defer(self, verdict: QuotaVerdict, now: float, bucket: Bucket, api_key: int) -> None:
        """As `start`, for a request that is forwarded only after the mute, or that `hold` waits for."""
        self._exceeded(verdict, now, bucket, api_key, None, 0)

    def hold(self, entry: Entry, now: float) -> None:
        """Take no further request until `entry` is answered, as Kafka does for every request. The connection is not muted."""
        if not self.active:
            self.until = now
            self._begin(entry)

    def _begin(self, entry: Entry | None) -> None:
        self.active = True
        self._mute.fire(MuteEvent.MUTE)
        self._mute.fire(MuteEvent.REQUEST_RECEIVED)
        self._entry = entry

    def _exceeded(
        self, verdict: QuotaVerdict, now: float, bucket: Bucket, api_key: int, entry: Entry | None, amount: int
    ) -> None:
        delay, enforced = verdict
        if enforced:
            longest = self.longest_mute(bucket, api_key, now)
            if longest < delay:
                shorten(bucket, delay, longest)
                self._counters.member_mutes += 1
                delay, verdict = longest, (longest, True)
        if self._recorder is not None:
            self._recorder.throttled(self.origin, api_key, bucket, amount, verdict, now)
        bucket.episode.note_address(self.origin.address)
        firm = not bucket.kind.spares_members and api_key != _SHARE_FETCH
        if enforced and self._mute_for(delay, now, bucket, entry, firm=firm):
            self._gated = False

    def mute_for_volumes(self, delay: float, now: float, bucket: Bucket, entry: Entry | None) -> None:
        """Mute because a volume is filling up. `bucket` is the client's own, and has no part in the decision."""
        self._gated = self._mute_for(delay, now, bucket, entry, firm=True) or self._gated

    def record_volume_delay(self, delay: float, now: float, bucket: Bucket, amount: int) -> None:
        """Record a Produce of `amount` bytes that is delayed or refused because a volume is filling up."""
        if self._recorder is not None:
            self._recorder.delayed_for_volume(self.origin, bucket, amount, delay, now)

    def _mute_for(self, delay: float, now: float, bucket: Bucket, entry: Entry | None, *, firm: bool) -> bool:
        """Mute for that time, unless the client is muted for longer already. True if the mute is now due to this call.

        A `firm` mute is not shortened for members of consumer groups and share consumers.
        """
        until = now + max(1, throttle_time_ms(delay)) / 1000.0
        if firm and until > self._firm_until:
            self._firm_until = until
        if self._ends is None:
            self._ends = {bucket: until}
        elif until > self._ends.get(bucket, 0.0):
            self._ends[bucket] = until
        if not self.active:
            self._begin(entry)
        if self._mute.state is MuteState.MUTED_AND_RESPONSE_PENDING:
            self._mute.fire(MuteEvent.THROTTLE_STARTED)
            self._unread_when_answered = -1
            if self._entry is None:
                self._mute.fire(MuteEvent.RESPONSE_SENT)
        elif until <= self.until:
            return False
        self.until = until
        self._mute_is_for(bucket)
        self._wire.wake_at(until)
        return True

    def membership(self) -> Membership:
        """The connection's members of consumer groups. Connections of clients without a rate of requests have none."""
        if self._membership is None:
            self._membership = Membership()
        return self._membership

    def longest_mute(self, bucket: Bucket, api_key: int, now: float) -> float:
        """The most seconds that the connection may be muted for this bucket because of a request of that API.

        Infinite unless it keeps a member in its group, or locks on records. A ShareFetch over its byte rate may come early:
        it gets no records while its bucket is in debt.
        """
        longest = inf
        if bucket.kind.spares_members:
            if self._membership is not None:
                longest = self._membership.longest_mute(now)
        elif api_key != _SHARE_FETCH:
            return inf
        return longest if self._locks is None else min(longest, self._locks.longest_mute(now))

    def accept_member(self, session_seconds: float | None, now: float, *, in_group_protocol: bool = False) -> None:
        """Note that the coordinator has accepted a member, see `Membership.accepted`, and shorten a mute that is too long."""
        membership = self.membership()
        if in_group_protocol:
            membership.accepted_by_heartbeat(now)
        else:
            membership.accepted(session_seconds, now)
        self._spare(membership, now)

    def keep_locks(self, lock_seconds: float, now: float, *, acquired: bool) -> None:
        """Note that a broker has answered a ShareFetch, and perhaps locked records for that time.

        The records come a second time unless their acknowledgement reaches the broker before. So a mute that is too long is
        shortened, as for a member of a group with that session timeout.
        """
        if self._locks is None:
            self._locks = Membership()
        if acquired:
            self._locks.beat(now)
        self._locks.accepted(lock_seconds, now)
        self._spare(self._locks, now)

    def _spare(self, membership: Membership, now: float) -> None:
        until = max(now + membership.longest_mute(now), self._firm_until)
        if self.active and until < self.until:
            self._counters.member_mutes += 1
            self._shorten(until)

    def time_left_ms(self, now: float) -> int:
        """The rest of the throttle time, for a response that is written now."""
        return throttle_time_ms(max(0.0, self.until - now)) if self.active else 0

    def answered(self, entry: Entry) -> bool:
        """Note that the response to `entry` is out; True if the connection may be read again."""
        if entry is not self._entry:
            return False
        self._entry = None
        if self._mute.fire(MuteEvent.RESPONSE_SENT) is MuteState.MUTED_AND_THROTTLED:
            self._unread_when_answered = self._wire.unread_client_bytes()
        return self._unmute()

    def wake(self, now: float) -> bool:
        """Note that the timer went off; True if the connection may be read again."""
        if not self.active or self._mute.state is MuteState.MUTED_AND_RESPONSE_PENDING:
            return False
        if now < self.until - TIMER_SLACK_SECONDS:
            self._wire.wake_at(self.until)
            return False
        self._mute.fire(MuteEvent.THROTTLE_ENDED)
        # The client knew the throttle time since its answer, so bytes that came before its end were sent too early.
        # A busy machine wakes the gateway late. Bytes may have come in good time since then.
        if self._bucket is not None and 0 <= self._unread_when_answered < self._wire.unread_client_bytes():
            early = self._wire.client_silence_seconds() - max(0.0, now - self.until)
            if early > KERNEL_TICK_SECONDS:
                self._bucket.note_early(early)
                if self._recorder is not None:
                    self._recorder.early(self.origin, self._bucket, early, now)
        return self._unmute()

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of quotas that the client is muted for; empty if it is not muted."""
        return frozenset() if self._ends is None else frozenset(bucket.kind.name for bucket in self._ends)

    @property
    def cause(self) -> str:
        """The quota that the client is muted for, such as `producer_byte_rate of user=alice`; "" if it is not muted."""
        bucket = self._bucket
        if bucket is None:
            return ""
        return "volumes" if self._gated else f"{bucket.kind.config_key} of {bucket.resolution.entity}"

    def reconsider(self, now: float, buckets: Mapping[str, tuple[Bucket, ...]], *, gated: bool = True) -> None:
        """Shorten the mute if the quotas or the gate require less time now. `buckets` are the client's of today, by `kinds`.

        Not `gated`: the client is exempt from the gate now.
        """
        bucket, ends = self._bucket, self._ends
        if bucket is None or ends is None:
            return
        same_kind = buckets[bucket.kind.name]
        changed = bucket not in same_kind
        if changed:
            bucket = max(same_kind, key=lambda each: each.throttle_left(now))
        if changed or self._gated:
            left = max(bucket.throttle_left(now), self._gate_delay if gated else 0.0)
        else:
            left = mute_left(bucket, max(0.0, self.until - now), self._limit, now)
        self._ends = {bucket: now + left}
        for kind, of_kind in buckets.items():
            end = max(until for each, until in ends.items() if each.kind.name == kind)
            self._ends |= {each: min(end, now + each.throttle_left(now)) for each in of_kind if each is not bucket}
        longest = max(self._ends, key=self._ends.__getitem__)
        if longest is not self._bucket:
            self._mute_is_for(longest)
        # The largest so far: a limit that is lowered and raised again does not shorten the mute twice.
        self._limit = max(self._limit or 0.0, longest.resolution.limit or 0.0) or None
        self._shorten(self._ends[longest])

    def let_go(self, buckets: Set[Bucket], now: float) -> None:
        """End the mute for these buckets now, as their debts were cleared. Other delays, and the gate's, stay."""
        bucket = self._bucket
        if bucket is None or self._ends is None:
            return
        self._ends = {each: end for each, end in self._ends.items() if each not in buckets}
        if bucket in buckets:
            until = now + self._gate_delay
            longest = max(self._ends, key=self._ends.__getitem__, default=bucket)
            if self._ends.get(longest, 0.0) > until:
                self._mute_is_for(longest)
            else:
                self._ends = {bucket: until}
            self._shorten(max(self._ends.values()))

    @property
    def _gate_delay(self) -> float:
        return self._gate.delay if self._gated and self._gate is not None else 0.0

    def _shorten(self, until: float) -> None:
        if until < self.until:
            self.until = until
            self._firm_until = min(self._firm_until, until)
            self._wire.wake_at(until)

    def abandon(self) -> None:
        """Stop counting the connection as muted, as it is gone."""
        self._entry = None  # the handler of an unanswered Produce refers to this throttle: a cycle for the garbage collector
        self._end()

    def _mute_is_for(self, bucket: Bucket) -> None:
        if self._bucket is None:
            self._counters.muted += 1
        self._bucket = bucket
        self._limit = bucket.resolution.limit

    def _unmute(self) -> bool:
        if self._mute.fire(MuteEvent.UNMUTE) is not MuteState.NOT_MUTED:
            return False
        self._end()
        return True

    def _end(self) -> None:
        self.active = False
        if self._bucket is not None:
            self._bucket = self._ends = None
            self._counters.muted -= 1


def mute_left(bucket: Bucket, left: float, limit: float | None, now: float) -> float:
    """The remaining seconds of a mute after a change of the configuration: `left` remained of it, under `limit`.

    A token bucket knows the rest of its debt, but not how long its clients wait for each other. A window forgets a burst
    with its samples, long before the mute ends. So the rest of the mute is scaled as the limit was.
    """
    meter, after = bucket.meter, bucket.resolution.limit
    if meter is None or after is None or not bucket.policy.enforce:
        return 0.0
    if limit == after and bucket.line.length > 0.0:
        return left
    if meter.tokens(now) is not None:
        return min(left, meter.delay(now))
    return left if limit is None else left * min(1.0, limit / after)
