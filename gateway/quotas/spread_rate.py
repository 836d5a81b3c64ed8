"""KIP-599's rate: a burst counts as if it had been spread over the past, at the quota, as far back as the window goes.

Source: KIP-599, "Throttling Algorithm", the variant that was discussed beside the token bucket. A plain sampled rate keeps the
whole burst in one sample, and stays over the quota until that sample leaves the window. Here each sample that leaves takes a
part of the burst with it. So a client is within its quota again after the time that a token bucket would have delayed it.
"""

from collections.abc import Sequence

from gateway.quotas.meter import Meter, PastUse, Window
from gateway.quotas.token_bucket import MAX_DEBT_SECONDS


class SpreadRate(Meter):
    """`window.samples` samples of `window.seconds` each, the current one included; over the limit while their sum is more
    than `limit * samples * seconds`. Samples begin at whole multiples of their length."""

    __slots__ = ("_newest", "_sample_ms", "_samples", "_window")

    def __init__(self, limit: float, window: Window, now: float) -> None:
        super().__init__(limit)
        self._window = window
        self._sample_ms = round(window.seconds * 1000)
        self._samples = [0.0] * window.samples  # the oldest first
        self._newest = self._number(now)

    def charge(self, amount: float, now: float) -> float:
        """A negative amount is given back from the newest samples first."""
        self._advance(now)
        samples = self._samples
        last = len(samples) - 1
        if amount < 0:
            for index in range(last, -1, -1):
                given = min(samples[index], -amount)
                samples[index] -= given
                amount += given
            return self.delay(now)
        amount = max(min(amount, self.tokens(now) + self._limit * MAX_DEBT_SECONDS), 0.0)
        full = self._limit * self._window.seconds
        for index in range(last):
            taken = min(max(full - samples[index], 0.0), amount)
            samples[index] += taken
            amount -= taken
            if amount <= 0.0:
                break
        samples[last] += amount
        return self.delay(now)

    def delay(self, now: float, promised: float = 0.0, ahead: float = 0.0) -> float:
        """The KIP's (R - Q) / Q * S * W, 0.0 up to the quota."""
        return max(0.0, (promised + ahead - self.tokens(now)) / self._limit)

    def rate(self, now: float) -> float:
        self._advance(now)
        return sum(self._samples) / (len(self._samples) * self._window.seconds)

    def tokens(self, now: float) -> float:
        self._advance(now)
        return self.capacity - sum(self._samples)

    def used_ratio(self, now: float) -> float:
        """The KIP's R / Q."""
        return self.rate(now) / self._limit

    def fetch_allowance(self, now: float, promised: float = 0.0, among: int = 1) -> float:
        return max((self.tokens(now) - promised) / among, 0.0)

    @property
    def capacity(self) -> float:
        return self._limit * len(self._samples) * self._window.seconds

    def set_limit(self, limit: float, now: float) -> None:
        if limit <= 0:
            raise ValueError(f"limit {limit} must be positive")
        self._advance(now)
        self._limit = limit

    def forgive(self, now: float) -> None:
        """Scale all samples down to the limit."""
        self._advance(now)
        held = sum(self._samples)
        if held > self.capacity:
            self._samples = [sample * self.capacity / held for sample in self._samples]

    def idle(self, now: float) -> bool:
        self._advance(now)
        return not any(self._samples)

    def dump(self, now: float) -> list[PastUse]:
        """The samples that are not empty; the current one ends after `now`."""
        self._advance(now)
        first = self._newest - len(self._samples) + 1
        seconds = self._sample_ms / 1000.0
        return [
            PastUse(now - (first + index) * seconds, now - (first + index + 1) * seconds, amount)
            for index, amount in enumerate(self._samples)
            if amount > 0.0
        ]

    def restore(self, used: Sequence[PastUse], now: float) -> None:
        """The middle of an amount's time decides on its sample: on another clock samples begin at other moments."""
        self._samples = [0.0] * len(self._samples)
        self._newest = self._number(now)
        oldest = len(self._samples) - 1
        for each in used:
            if round(each.began * 1000.0) < len(self._samples) * self._sample_ms:  # it has not left the window
                age = self._newest - self._number(now - (each.began + each.ended) / 2.0)
                self._samples[oldest - min(max(age, 0), oldest)] += each.amount

    def _number(self, now: float) -> int:
        return round(now * 1000.0) // self._sample_ms

    def _advance(self, now: float) -> None:
        """Drop the samples that have left the window."""
        newest = self._number(now)
        gone = min(newest - self._newest, len(self._samples))
        if gone > 0:
            self._samples = self._samples[gone:] + [0.0] * gone
            self._newest = newest
