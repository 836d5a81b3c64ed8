"""Kafka's sampled rate (KIP-13): what was recorded in the last samples, over the time that they cover.

Source: `SampledStat`, `WindowedSum`, `Rate` and `QuotaUtils.throttleTime` of Kafka 3.8 and later, whose samples stay whole as
long as an event in them lies inside the monitored span. Times inside are integral milliseconds, as they are in Kafka.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gateway.quotas.meter import FETCH_SLICE_SECONDS, Meter, Spent, Window


class Rate(ABC):
    """How much comes in a second, worked out by one of several rules. `now` is in monotonic seconds, and never goes back."""

    @abstractmethod
    def record(self, amount: float, now: float) -> None:
        """So much has come."""

    @abstractmethod
    def measure(self, now: float) -> float:
        """The rate per second."""

    @abstractmethod
    def kept(self, now: float) -> float:
        """How much of what has come still counts."""

    @abstractmethod
    def spent(self, now: float) -> list[Spent]:
        """What it remembers, as the rule has it, the oldest first."""

    @abstractmethod
    def replay(self, spent: Sequence[Spent], now: float) -> None:
        """Forget everything, and remember instead what another one of the same rule had `spent`."""


class _Sample:
    __slots__ = ("last_event", "start", "total")

    def __init__(self, now: int) -> None:
        self.reset(now)

    def reset(self, now: int) -> None:
        self.start = self.last_event = now
        self.total = 0.0


class SampledRate(Rate):
    """A rate per second over `window.samples` samples of `window.seconds` each."""

    __slots__ = ("_current", "_ring", "_sample_ms", "_samples")

    def __init__(self, window: Window) -> None:
        self._samples = window.samples
        self._sample_ms = round(window.seconds * 1000)
        self._ring: list[_Sample] = []
        self._current = 0

    def record(self, amount: float, now: float) -> None:
        """Add `amount` to the current sample, beginning a new one where that is over."""
        now_ms = _ms(now)
        sample = self._sample(now_ms)
        if now_ms - sample.start >= self._sample_ms:
            sample = self._advance(now_ms)
        sample.total += amount
        sample.last_event = now_ms

    def measure(self, now: float) -> float:
        """The observed rate per second."""
        now_ms = _ms(now)
        window_ms = self.window_ms(now)
        return sum(sample.total for sample in self._purged(now_ms)) / (window_ms / 1000.0)

    def kept(self, now: float) -> float:
        """What the samples hold."""
        return sum(sample.total for sample in self._purged(_ms(now)))

    def window_ms(self, now: float) -> int:
        """The time that the samples cover, in ms: at least all but one of the full samples."""
        now_ms = _ms(now)
        self._sample(now_ms)
        elapsed = now_ms - min(sample.start for sample in self._purged(now_ms))
        full = elapsed // self._sample_ms
        if full < self._samples - 1:
            elapsed += (self._samples - 1 - full) * self._sample_ms
        return max(elapsed, 1)

    def live_samples(self, now: float) -> int:
        """How many samples hold something that still counts. (One that was purged is as new as the last look at it.)"""
        now_ms = _ms(now)
        return sum(1 for sample in self._ring if sample.total and now_ms - sample.last_event < self._samples * self._sample_ms)

    def scale(self, factor: float) -> None:
        """Act as if each amount had been `factor` of what it was."""
        for sample in self._ring:
            sample.total *= factor

    def spent(self, now: float) -> list[Spent]:
        """Each sample, the current one last; of those that hold nothing, when they began."""
        ring = self._purged(_ms(now))
        in_order = ring[self._current + 1 :] + ring[: self._current + 1]
        return [Spent(now - sample.start / 1000.0, now - sample.last_event / 1000.0, sample.total) for sample in in_order]

    def replay(self, spent: Sequence[Spent], now: float) -> None:
        """Begin with these samples; where they are too many, because each was shorter, those of one sample are joined."""
        self._ring = []
        too_many = len(spent) > self._samples + 1
        for each in spent:
            began = _ms(now - each.began)
            if too_many and self._ring and began - self._ring[-1].start < self._sample_ms:
                sample = self._ring[-1]
            else:
                sample = _Sample(began)
                self._ring.append(sample)
            sample.last_event = _ms(now - each.ended)
            sample.total += each.amount
        self._ring = self._ring[-self._samples - 1 :]
        self._current = max(len(self._ring) - 1, 0)

    def _sample(self, now_ms: int) -> _Sample:
        if not self._ring:
            self._ring.append(_Sample(now_ms))
        return self._ring[self._current]

    def _advance(self, now_ms: int) -> _Sample:
        self._current = (self._current + 1) % (self._samples + 1)
        if self._current >= len(self._ring):
            self._ring.append(_Sample(now_ms))
        else:
            self._ring[self._current].reset(now_ms)
        return self._ring[self._current]

    def _purged(self, now_ms: int) -> list[_Sample]:
        span = self._samples * self._sample_ms
        for sample in self._ring:
            if now_ms - sample.last_event >= span:
                sample.reset(now_ms)
        return self._ring


class WindowMeter(Meter):
    """A byte quota as Kafka keeps it: over the limit for as long as the sampled rate is above it."""

    __slots__ = ("_limit", "_rate", "_span")

    def __init__(self, limit: float, window: Window) -> None:
        self._limit = limit
        self._rate = SampledRate(window)
        self._span = (window.samples - 1) * window.seconds

    def charge(self, amount: float, now: float) -> float:
        """Record, then check (so that the request which goes over is let through): KIP-13's delay in seconds."""
        self._rate.record(amount, now)
        return self.delay(now)

    def delay(self, now: float, promised: float = 0.0, ahead: float = 0.0) -> float:  # noqa: ARG002 - Kafka promises nothing
        """(observed - bound) / bound * window, which is KIP-13's (overall - bound * window) / bound; 0.0 up to the bound. Added
        is the time in which the bound allows the bytes `ahead`."""
        observed = self._rate.measure(now)
        turn = ahead / self._limit
        if observed <= self._limit:
            return turn
        return (observed - self._limit) / self._limit * self._rate.window_ms(now) / 1000.0 + turn

    def rate(self, now: float) -> float:
        """The observed rate per second."""
        return self._rate.measure(now)

    def tokens(self, now: float) -> None:  # noqa: ARG002
        """A window has none."""
        return

    def balance(self, now: float) -> float:
        """The bound over the time that the samples cover, less what they hold."""
        return self._limit * self._rate.window_ms(now) / 1000.0 - self._rate.kept(now)

    def used_ratio(self, now: float) -> float:
        """KIP-13's: the observed rate as a fraction of the bound."""
        return self._rate.measure(now) / self._limit

    def fetch_allowance(self, now: float, promised: float = 0.0, among: int = 1) -> float:  # noqa: ARG002
        """The capacity, as Kafka has it (KAFKA-9677)."""
        return self.capacity

    @property
    def portion(self) -> float:
        """The same slice of the quota as a token bucket's."""
        return self._limit * FETCH_SLICE_SECONDS

    @property
    def takes_back(self) -> bool:
        """`recordAndGetThrottleTimeMs`, then `unrecordQuotaSensor`: an empty answer in its place."""
        return True

    @property
    def capacity(self) -> float:
        """What the whole window may hold: `getMaxValueInQuotaWindow`."""
        return self._limit * self._span

    def set_limit(self, limit: float, now: float) -> None:  # noqa: ARG002
        """Swap the bound; the history stays."""
        if limit <= 0:
            raise ValueError(f"limit {limit} must be positive")
        self._limit = limit

    def forgive(self, now: float) -> None:
        """Cut what was recorded to what the limit allows: who waits uses no more."""
        observed = self._rate.measure(now)
        if observed > self._limit:
            self._rate.scale(self._limit / observed)

    def idle(self, now: float) -> bool:
        """Whether all samples have left the window."""
        return self._rate.live_samples(now) == 0

    def spent(self, now: float) -> list[Spent]:
        """The samples."""
        return self._rate.spent(now)

    def replay(self, spent: Sequence[Spent], now: float) -> None:
        """Begin with these samples."""
        self._rate.replay(spent, now)


def _ms(now: float) -> int:
    return round(now * 1000.0)
