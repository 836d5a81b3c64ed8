"""KIP-599's rate: a burst counts as if it had been spread over the past, at the quota, as far back as the window goes.

Source: KIP-599, "Throttling Algorithm", the variant that was discussed beside the token bucket. A plain sampled rate keeps the
whole burst in one sample, and stays over the quota until that sample leaves the window. Here each sample that leaves takes a
part of the burst with it. So a client is within its quota again after the time that a token bucket would have delayed it.

If the past has no room for it, the rest is spread over the future: each new sample begins with a part. Otherwise the surplus
would leave the window with its own sample, as free credit. Each client that goes over the quota would repeat it once a window.
"""

from collections.abc import Sequence

from gateway.quotas.meter import Meter, PastUse, Window, positive
from gateway.quotas.token_bucket import MAX_DEBT_SECONDS


class SpreadRate(Meter):
    """`window.samples` samples of `window.seconds` each, the current one included; over the limit while their sum is more
    than `limit * samples * seconds`. Samples begin at whole multiples of their length. `_debt` is for samples to come."""

    __slots__ = ("_debt", "_newest", "_sample_ms", "_samples", "_window")

    def __init__(self, limit: float, window: Window, now: float) -> None:
        super().__init__(limit)
        self._window = window
        self._sample_ms = round(window.seconds * 1000)
        self._samples = [0.0] * window.samples  # the oldest first
        self._newest = self._number(now)
        self._debt = 0.0

    def charge(self, amount: float, now: float) -> float:
        """A negative amount is given back from the debt, and from the newest samples first."""
        self._advance(now)
        samples = self._samples
        if amount < 0:
            given = min(self._debt, -amount)
            self._debt -= given
            amount += given
            for index in range(len(samples) - 1, -1, -1):
                given = min(samples[index], -amount)
                samples[index] -= given
                amount += given
            return self.delay(now)
        amount = max(min(amount, self.tokens(now) + self._limit * MAX_DEBT_SECONDS), 0.0)
        self._debt += self._fill(0, amount)
        return self.delay(now)

    def delay(self, now: float, promised: float = 0.0, ahead: float = 0.0) -> float:
        """The KIP's (R - Q) / Q * S * W, 0.0 up to the quota.

        After the limit was lowered, samples may have more than the limit allows. They leave the window with all of it, so the
        delay is shorter then.
        """
        owed = promised + ahead - self.tokens(now)
        delay = max(0.0, owed / self._limit)
        if delay > 0.0:
            for gone, sample in enumerate(self._samples, 1):
                owed -= sample
                delay = min(delay, gone * self._window.seconds + max(0.0, owed / self._limit))
        return delay

    def rate(self, now: float) -> float:
        self._advance(now)
        return self._used() / (len(self._samples) * self._window.seconds)

    def tokens(self, now: float) -> float:
        self._advance(now)
        return self.capacity - self._used()

    def used_ratio(self, now: float) -> float:
        """The KIP's R / Q."""
        return self.rate(now) / self._limit

    def fetch_allowance(self, now: float, promised: float = 0.0, among: int = 1) -> float:
        return max((self.tokens(now) - promised) / among, 0.0)

    @property
    def capacity(self) -> float:
        return self._limit * len(self._samples) * self._window.seconds

    def set_limit(self, limit: float, now: float) -> None:
        """Use is kept, and a debt up to the longest one. Lowered, a limit makes no debt beyond the window."""
        self._advance(now)
        self._limit = positive(limit)
        self._debt = min(self._debt, limit * MAX_DEBT_SECONDS)

    def forgive(self, now: float) -> None:
        """Drop the debt, and scale all samples down to the limit."""
        self._advance(now)
        self._debt = 0.0
        held = sum(self._samples)
        if held > self.capacity:
            self._samples = [sample * self.capacity / held for sample in self._samples]

    def idle(self, now: float) -> bool:
        self._advance(now)
        return not any(self._samples) and self._debt == 0.0

    def dump(self, now: float) -> list[PastUse]:
        """The samples that are not empty; the current one ends after `now`. The debt is an amount of this moment."""
        self._advance(now)
        first = self._newest - len(self._samples) + 1
        seconds = self._sample_ms / 1000.0
        found = [
            PastUse(now - (first + index) * seconds, now - (first + index + 1) * seconds, amount)
            for index, amount in enumerate(self._samples)
            if amount > 0.0
        ]
        return [*found, PastUse(0.0, 0.0, self._debt)] if self._debt > 0.0 else found

    def restore(self, used: Sequence[PastUse], now: float) -> None:
        """The middle of an amount's time decides on its sample: on another clock samples begin at other moments."""
        self._samples = [0.0] * len(self._samples)
        self._newest = self._number(now)
        self._debt = 0.0
        oldest = len(self._samples) - 1
        for each in used:
            if each.began == each.ended:
                self._debt += each.amount
                self._pay(self._newest - self._number(now - each.began))
            elif round(each.began * 1000.0) < len(self._samples) * self._sample_ms:  # it has not left the window
                age = self._newest - self._number(now - (each.began + each.ended) / 2.0)
                self._samples[oldest - min(max(age, 0), oldest)] += each.amount

    def _number(self, now: float) -> int:
        return round(now * 1000.0) // self._sample_ms

    def _advance(self, now: float) -> None:
        """Drop the samples that have left the window, and begin new ones with their parts of the debt."""
        newest = self._number(now)
        gone = newest - self._newest
        if gone > 0:
            kept = self._samples[gone:]
            self._samples = kept + [0.0] * (len(self._samples) - len(kept))
            self._newest = newest
            if self._debt > 0.0:
                self._pay(gone)

    def _pay(self, begun: int) -> None:
        """Spread the debt over the last `begun` samples. Those that have left the window have taken their parts with them."""
        left = max(begun - len(self._samples), 0)
        self._debt = max(self._debt - left * self._limit * self._window.seconds, 0.0)
        self._debt = self._fill(len(self._samples) - (begun - left), self._debt)

    def _fill(self, first: int, amount: float) -> float:
        """Fill the samples from `first` on, the oldest first, each up to the limit. Returns the units without room."""
        full = self._limit * self._window.seconds
        for index in range(first, len(self._samples)):
            taken = min(max(full - self._samples[index], 0.0), amount)
            self._samples[index] += taken
            amount -= taken
            if amount <= 0.0:
                break
        return amount

    def _used(self) -> float:
        return sum(self._samples) + self._debt
