"""KIP-599's rate: a burst counts as if it had been spread over the past, at the quota, as far back as the window goes.

Source: KIP-599, "Throttling Algorithm", the variant that was discussed beside the token bucket. A plain sampled
rate keeps the whole burst in one sample and stays over the quota until that sample leaves; here each sample that leaves takes a
share of the burst with it, so that the quota is kept again after the very time that a token bucket would have waited.
"""

from collections.abc import Sequence

from gateway.quotas.meter import FETCH_SLICE_SECONDS, Meter, Spent, Window


class SpreadRate(Meter):
    """`window.samples` samples of `window.seconds` each, the current one included; over the limit while their sum is more
    than `limit * samples * seconds`. Samples begin at whole multiples of their length."""

    __slots__ = ("_limit", "_newest", "_sample_ms", "_samples", "_window")

    def __init__(self, limit: float, window: Window, now: float) -> None:
        if limit <= 0:
            raise ValueError(f"limit {limit} must be positive")
        self._limit = limit
        self._window = window
        self._sample_ms = round(window.seconds * 1000)
        self._samples = [0.0] * window.samples  # the oldest first
        self._newest = self._number(now)

    def charge(self, amount: float, now: float) -> float:
        """Record `amount` (negative: give back, the newest first); return the seconds until the quota is kept again."""
        self._advance(now)
        samples = self._samples
        last = len(samples) - 1
        if amount < 0:
            for index in range(last, -1, -1):
                given = min(samples[index], -amount)
                samples[index] -= given
                amount += given
            return self.delay(now)
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
        """The KIP's (R - Q) / Q * S * W, 0.0 up to the quota; what is promised counts as used."""
        return max(0.0, (promised + ahead - self.tokens(now)) / self._limit)

    def rate(self, now: float) -> float:
        """What the samples hold, over the time that they cover."""
        self._advance(now)
        return sum(self._samples) / (len(self._samples) * self._window.seconds)

    def tokens(self, now: float) -> float:
        """What the window would still hold without going over; below zero for a debt."""
        self._advance(now)
        return self.capacity - sum(self._samples)

    def balance(self, now: float) -> float:
        """The same."""
        return self.tokens(now)

    def used_ratio(self, now: float) -> float:
        """The rate in the KIP's sense, R / Q."""
        return self.rate(now) / self._limit

    def fetch_allowance(self, now: float, promised: float = 0.0, among: int = 1) -> float:
        """An equal part of what is left."""
        return max((self.tokens(now) - promised) / among, 0.0)

    @property
    def portion(self) -> float:
        """The same slice of the quota as a token bucket's."""
        return self._limit * FETCH_SLICE_SECONDS

    @property
    def takes_back(self) -> bool:
        """What went over has happened, and is waited for."""
        return False

    @property
    def capacity(self) -> float:
        """What the whole window may hold: as much as a token bucket's burst."""
        return self._limit * len(self._samples) * self._window.seconds

    def set_limit(self, limit: float, now: float) -> None:
        """Swap the bound; what the samples hold stays."""
        if limit <= 0:
            raise ValueError(f"limit {limit} must be positive")
        self._advance(now)
        self._limit = limit

    def forgive(self, now: float) -> None:
        """Cut each sample alike, to what the limit allows."""
        self._advance(now)
        held = sum(self._samples)
        if held > self.capacity:
            self._samples = [sample * self.capacity / held for sample in self._samples]

    def idle(self, now: float) -> bool:
        """Whether everything has left the window."""
        self._advance(now)
        return not any(self._samples)

    def spent(self, now: float) -> list[Spent]:
        """The samples that hold something; the current one ends after `now`."""
        self._advance(now)
        first = self._newest - len(self._samples) + 1
        seconds = self._sample_ms / 1000.0
        return [
            Spent(now - (first + index) * seconds, now - (first + index + 1) * seconds, amount)
            for index, amount in enumerate(self._samples)
            if amount > 0.0
        ]

    def replay(self, spent: Sequence[Spent], now: float) -> None:
        """Put each where its middle lies: samples may begin at other moments here, when the clock is another one."""
        self._samples = [0.0] * len(self._samples)
        self._newest = self._number(now)
        oldest = len(self._samples) - 1
        for each in spent:
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
