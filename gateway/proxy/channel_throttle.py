"""One connection's throttle: how long it is muted, and what has to happen before it is read again (KIP-219)."""

from collections.abc import Set
from typing import Final, Protocol

from gateway.proxy.counters import Counters
from gateway.proxy.in_flight import Entry
from gateway.proxy.mute_states import Mute, MuteEvent, MuteState
from gateway.proxy.recorder import Origin, Recorder
from gateway.proxy.wire import Wire
from gateway.quotas.bucket import Bucket, QuotaVerdict
from gateway.quotas.meter import throttle_time_ms
from protocol.api_keys import ApiKey

_PRODUCE: Final = int(ApiKey.PRODUCE)

TIMER_SLACK_SECONDS: Final = 0.001
"""Timers of the event loop count whole milliseconds, so they may be early by as much."""


class Held(Protocol):
    """Who holds clients back for another reason than their quotas: each for `delay` seconds, as things are."""

    delay: float


class ChannelThrottle:
    """Joins Kafka's mute states with our pipelining.

    Kafka reads one request at a time; here many may be under way when one of them goes over. That one (`entry`) mutes the
    connection; others whose answers go over meanwhile make the time longer. `active` is True from the mute to the unmute.
    """

    __slots__ = (
        "_bucket",
        "_counters",
        "_entry",
        "_gate",
        "_gated",
        "_limit",
        "_mute",
        "_recorder",
        "_unread_when_told",
        "_wire",
        "active",
        "origin",
        "until",
    )

    def __init__(self, wire: Wire, counters: Counters, recorder: Recorder | None = None, gate: Held | None = None) -> None:
        self._wire = wire
        self._counters = counters
        self._recorder = recorder
        self._gate = gate
        self._gated = False  # it is for the gate's sake that the client is held until `until`
        self.origin = Origin()
        self._mute = Mute()
        self._entry: Entry | None = None
        self._bucket: Bucket | None = None
        self._limit: float | None = None
        self._unread_when_told = -1
        self.active = False
        self.until = 0.0

    def start(self, verdict: QuotaVerdict, now: float, bucket: Bucket, entry: Entry | None, amount: int = 0) -> None:
        """Record a bucket's verdict, and mute the client if the verdict is enforced.

        `entry` is the request that went over by using `amount`. It is None for a Produce that gets no answer (acks=0).
        """
        delay, enforced = verdict
        if self._recorder is not None:
            api_key = _PRODUCE if entry is None else entry.api_key
            self._recorder.throttled(self.origin, api_key, bucket, amount, verdict, now)
        if enforced and self._mute_for(delay, now, bucket, entry):
            self._gated = False

    def defer(self, verdict: QuotaVerdict, now: float, bucket: Bucket, api_key: int) -> None:
        """As `start`, for a request that is forwarded only after the mute."""
        delay, enforced = verdict
        if self._recorder is not None:
            self._recorder.throttled(self.origin, api_key, bucket, 0, verdict, now)
        if enforced and self._mute_for(delay, now, bucket, None):
            self._gated = False

    def hold(self, delay: float, now: float, bucket: Bucket, entry: Entry | None) -> None:
        """Mute for the volumes' sake: it is no decision of the bucket's, which tells only whose request it is."""
        self._gated = self._mute_for(delay, now, bucket, entry) or self._gated

    def note_held(self, delay: float, now: float, bucket: Bucket, amount: int) -> None:
        """Report a Produce of `amount` bytes that is delayed or refused for the volumes' sake."""
        if self._recorder is not None:
            self._recorder.held(self.origin, bucket, amount, delay, now)

    def _mute_for(self, delay: float, now: float, bucket: Bucket, entry: Entry | None) -> bool:
        """Mute for that time, unless the client is muted for longer; whether it is muted because of this now."""
        until = now + max(1, throttle_time_ms(delay)) / 1000.0
        if self.active and self._mute.state is not MuteState.MUTED_AND_RESPONSE_PENDING:
            if until <= self.until:
                return False
            self.until = until
            self._holds(bucket)
            self._wire.wake_at(until)
            return True
        if not self.active:
            self.active = True
            self._counters.muted += 1
            self._mute.fire(MuteEvent.MUTE)
            self._mute.fire(MuteEvent.REQUEST_RECEIVED)
            self._entry = entry
        self._mute.fire(MuteEvent.THROTTLE_STARTED)
        self._holds(bucket)
        self._unread_when_told = -1
        self.until = until
        self._wire.wake_at(until)
        if self._entry is None:
            self._mute.fire(MuteEvent.RESPONSE_SENT)
        return True

    def time_left_ms(self, now: float) -> int:
        """What is left of the throttle time, for a response that is written now."""
        return throttle_time_ms(max(0.0, self.until - now)) if self.active else 0

    def answered(self, entry: Entry) -> bool:
        """A response is out; True if the connection may be read again."""
        if entry is not self._entry:
            return False
        self._entry = None
        if self._mute.fire(MuteEvent.RESPONSE_SENT) is MuteState.MUTED_AND_THROTTLED:
            self._unread_when_told = self._wire.unread_client_bytes()
        return self._unmute()

    def wake(self, now: float) -> bool:
        """The timer went off; True if the connection may be read again."""
        if not self.active or self._mute.state is MuteState.MUTED_AND_RESPONSE_PENDING:
            return False
        if now < self.until - TIMER_SLACK_SECONDS:
            self._wire.wake_at(self.until)
            return False
        self._mute.fire(MuteEvent.THROTTLE_ENDED)
        # Bytes that came after the client had been told how long to wait were sent before that time was over.
        if self._bucket is not None and 0 <= self._unread_when_told < self._wire.unread_client_bytes():
            early = max(0.0, self._wire.client_silence_seconds() - max(0.0, now - self.until))
            self._bucket.note_early(early)
            if self._recorder is not None:
                self._recorder.early(self.origin, self._bucket, early, now)
        return self._unmute()

    @property
    def kind(self) -> str | None:
        """The kind of quota that the client is muted for."""
        return None if self._bucket is None else self._bucket.kind.name

    def reconsider(self, now: float, bucket: Bucket | None = None) -> None:
        """Shorten the mute if the quotas or the gate by now ask for less time.

        `bucket` is the one that holds for the client now, where another quota applies to it than when it was muted.
        """
        if self.active and self._bucket is not None:
            if bucket is not None and bucket is not self._bucket:
                self._bucket, self._limit = bucket, bucket.resolution.limit
                left = max(bucket.throttle_left(now), self._gate.delay if self._gated and self._gate is not None else 0.0)
            elif self._gated and self._gate is not None:
                left = max(self._gate.delay, self._bucket.throttle_left(now))
            else:
                left = self._bucket.still_held(max(0.0, self.until - now), self._limit, now)
            until = now + left
            self._limit = max(self._limit or 0.0, self._bucket.resolution.limit or 0.0) or None
            if until < self.until:
                self.until = until
                self._wire.wake_at(until)

    def let_go(self, buckets: Set[Bucket], now: float) -> None:
        """End the mute now if it is for one of these buckets, whose debts were cleared; the gate's own delay stays."""
        if self.active and self._bucket in buckets:
            until = now + (self._gate.delay if self._gated and self._gate is not None else 0.0)
            if until < self.until:
                self.until = until
                self._wire.wake_at(until)

    def abandon(self) -> None:
        """The connection is gone."""
        if self.active:
            self.active = False
            self._counters.muted -= 1

    def _holds(self, bucket: Bucket) -> None:
        """It is this bucket's quota, as it is now, for which the client is held."""
        self._bucket = bucket
        self._limit = bucket.resolution.limit

    def _unmute(self) -> bool:
        if self._mute.fire(MuteEvent.UNMUTE) is not MuteState.NOT_MUTED:
            return False
        self._bucket = None
        self.active = False
        self._counters.muted -= 1
        return True
