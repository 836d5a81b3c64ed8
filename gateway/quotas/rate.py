"""Kafka's sampled rate (KIP-13): the amount of the last samples, divided by the time that they cover.

Source: `SampledStat`, `WindowedSum`, `Rate` and `QuotaUtils.throttleTime` of Kafka 3.8 and later. There a sample stays whole
while an event in it lies inside the monitored span. Times inside are integral milliseconds, as in Kafka.

Kafka looks at a rate right after each record only. Weir looks at any time, so only a record empties outdated samples.
"""

from collections.abc import Sequence
from typing import Protocol

from gateway.quotas.meter import Meter, PastUse, Window, positive


class Rate(Protocol):
    """A rate per second by one of several rules. `now` is in monotonic seconds, and never goes back."""

    def record(self, amount: float, now: float) -> None: ...

    def measure(self, now: float) -> float:
        """The rate per second."""

    def kept(self, now: float) -> float:
        """The amount that still counts."""

    def dump(self, now: float) -> list[PastUse]:
        """The amounts that still count, oldest first."""

    def restore(self, used: Sequence[PastUse], now: float) -> None:
        """Replace the use by the dump of a rate of the same rule."""


class _Sample:
    __slots__ = ("last_event", "start", "total")

    def __init__(self, now: int) -> None:
        self.reset(now)

    def reset(self, now: int) -> None:
        self.start = self.last_event = now
        self.total = 0.0


def _start(sample: _Sample) -> int:
    return sample.start


class SampledRate:
    """A rate per second over `window.samples` samples of `window.seconds` each."""

    __slots__ = ("_current", "_ring", "_sample_ms", "_samples", "_span_ms")

    def __init__(self, window: Window) -> None:
        self._samples = window.samples
        self._sample_ms = round(window.seconds * 1000)
        self._span_ms = self._samples * self._sample_ms
        self._ring: list[_Sample] = []
        self._current = 0

    def record(self, amount: float, now: float) -> None:
        now_ms = _ms(now)
        sample = self._sample(now_ms)
        if now_ms - sample.start >= self._sample_ms:
            sample = self._advance(now_ms)
        sample.total += amount
        sample.last_event = now_ms
        outdated = now_ms - self._span_ms
        for each in self._ring:
            if each.last_event <= outdated:
                each.reset(now_ms)

    def give_back(self, amount: float, recorded: float, now: float) -> None:
        """Take units out of the sample that was current at the time `recorded`, and of those before it, as far as they go.

        Later samples would go below zero, and would outlast the units. Units that have left the window stay gone.
        """
        recorded_ms = _ms(recorded)
        samples = [sample for sample in self._counting(_ms(now)) if sample.start <= recorded_ms]
        for sample in sorted(samples, key=_start, reverse=True):
            given = min(amount, max(sample.total, 0.0))
            sample.total -= given
            amount -= given

    def measure(self, now: float) -> float:
        now_ms = _ms(now)
        counting = self._counting(now_ms)
        return sum([sample.total for sample in counting]) / (self._covered_ms(counting, now_ms) / 1000.0)

    def kept(self, now: float) -> float:
        return sum([sample.total for sample in self._counting(_ms(now))])

    def window_ms(self, now: float) -> int:
        """The time that the samples cover, in ms: at least all but one of the full samples."""
        now_ms = _ms(now)
        return self._covered_ms(self._counting(now_ms), now_ms)

    def _covered_ms(self, counting: list[_Sample], now_ms: int) -> int:
        elapsed = now_ms - min([sample.start for sample in counting], default=now_ms)
        full = elapsed // self._sample_ms
        if full < self._samples - 1:
            elapsed += (self._samples - 1 - full) * self._sample_ms
        return max(elapsed, 1)

    def live_samples(self, now: float) -> int:
        """The number of samples with an amount that still counts."""
        return sum([1 for sample in self._counting(_ms(now)) if sample.total])

    def scale(self, factor: float) -> None:
        """Multiply all recorded amounts."""
        for sample in self._ring:
            sample.total *= factor

    def dump(self, now: float) -> list[PastUse]:
        """All samples, the current one last; of an empty sample only the time of its beginning matters."""
        counting = self._counting(_ms(now))
        in_order = self._ring[self._current + 1 :] + self._ring[: self._current + 1]
        return [
            PastUse(now - sample.start / 1000.0, now - sample.last_event / 1000.0, sample.total)
            if sample in counting
            else PastUse(0.0, 0.0, 0.0)
            for sample in in_order
        ]

    def restore(self, used: Sequence[PastUse], now: float) -> None:
        """Samples that were shorter are joined if there are too many of them."""
        self._ring = []
        too_many = len(used) > self._samples + 1
        for each in used:
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

    def _counting(self, now_ms: int) -> list[_Sample]:
        outdated = now_ms - self._span_ms
        return [sample for sample in self._ring if sample.last_event > outdated]


class WindowMeter(Meter):
    """Kafka's byte quota: over the limit while the sampled rate is above the limit."""

    __slots__ = ("_rate", "_span")

    def __init__(self, limit: float, window: Window) -> None:
        super().__init__(limit)
        self._rate = SampledRate(window)
        self._span = (window.samples - 1) * window.seconds

    def charge(self, amount: float, now: float) -> float:
        """Record, then check: the request that goes over the limit passes (KIP-13)."""
        self._rate.record(amount, now)
        return self.delay(now)

    def give_back(self, amount: float, charged: float, now: float) -> None:
        """Kafka gives back only the charge of this moment, which `charge` does."""
        self._rate.give_back(amount, charged, now)

    def delay(self, now: float, promised: float = 0.0, ahead: float = 0.0) -> float:  # noqa: ARG002 - Kafka promises nothing
        """(observed - bound) / bound * window, which is KIP-13's (overall - bound * window) / bound.

        The time in which the bound allows the units `ahead` is added.
        """
        observed = self._rate.measure(now)
        turn = ahead / self._limit
        if observed <= self._limit:
            return turn
        return (observed - self._limit) / self._limit * self._rate.window_ms(now) / 1000.0 + turn

    def rate(self, now: float) -> float:
        return self._rate.measure(now)

    def tokens(self, now: float) -> None:  # noqa: ARG002
        return

    def balance(self, now: float) -> float:
        return self._limit * self._rate.window_ms(now) / 1000.0 - self._rate.kept(now)

    def used_ratio(self, now: float) -> float:
        """KIP-13's ratio: the observed rate, divided by the bound."""
        return self._rate.measure(now) / self._limit

    def fetch_allowance(self, now: float, promised: float = 0.0, among: int = 1) -> float:  # noqa: ARG002
        """The capacity, as in Kafka (KAFKA-9677)."""
        return self.capacity

    @property
    def takes_back(self) -> bool:
        """Kafka's `recordAndGetThrottleTimeMs`, `unrecordQuotaSensor` and an empty answer."""
        return True

    @property
    def capacity(self) -> float:
        """Kafka's `getMaxValueInQuotaWindow`."""
        return self._limit * self._span

    def set_limit(self, limit: float, now: float) -> None:  # noqa: ARG002
        self._limit = positive(limit)

    def forgive(self, now: float) -> None:
        """Scale the recorded amounts down to the limit: a client that waits uses no more."""
        observed = self._rate.measure(now)
        if observed > self._limit:
            self._rate.scale(self._limit / observed)

    def idle(self, now: float) -> bool:
        return self._rate.live_samples(now) == 0

    def dump(self, now: float) -> list[PastUse]:
        return self._rate.dump(now)

    def restore(self, used: Sequence[PastUse], now: float) -> None:
        self._rate.restore(used, now)


def _ms(now: float) -> int:
    return round(now * 1000.0)
