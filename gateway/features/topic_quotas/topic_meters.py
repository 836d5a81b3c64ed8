"""The meters of topics: the bytes that brokers appended and refused, and the bytes that topic quotas rejected."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from gateway.features.topic_quotas.one_minute_rate import FADED_SECONDS, OneMinuteRate
from gateway.quotas.meter import Window
from gateway.quotas.rate import Rate, SampledRate
from gateway.quotas.shared_meter import SharedMeter

RATES: Final[Mapping[str, Callable[[Window, float], Rate]]] = {
    "one_minute": lambda _, now: OneMinuteRate(now),
    "window": lambda window, _: SampledRate(window),
}
"""The algorithms for rates by their names in the config file. The first one is the default."""

WINDOWED: Final = frozenset({"window"})
"""The algorithms that depend on the quota window."""


def seconds_kept(meter: str, window: Window) -> float:
    """The time for which a rate of the algorithm `meter` counts bytes."""
    return window.length if meter in WINDOWED else FADED_SECONDS


class AppendedBytes:
    """A `UsageAccount` of appended bytes.

    `rate` covers the bytes through this gateway. `elsewhere` covers the bytes through its peers, and is None until a peer has
    reported some. `capacity_bytes` is the value of `capacity()`.
    """

    __slots__ = ("appended_bytes", "capacity_bytes", "elsewhere", "elsewhere_bytes", "rate", "shared_total")

    def __init__(self, rate: Rate, capacity_bytes: float = 0.0) -> None:
        self.shared_total = 0
        self.rate = rate
        self.elsewhere: Rate | None = None
        self.elsewhere_bytes = 0
        self.capacity_bytes = capacity_bytes
        self.appended_bytes = 0

    def measure(self, now: float) -> float:
        """Bytes per second through all gateways."""
        rate = self.rate.measure(now)
        return rate if self.elsewhere is None else rate + self.elsewhere.measure(now)

    def total(self) -> int:
        return self.appended_bytes

    def recent(self, now: float) -> int:
        return round(self.rate.kept(now))

    def capacity(self) -> float:
        return self.capacity_bytes

    def shared_meter(self) -> SharedMeter | None:
        return None

    def charge_others(self, amount: int, now: float, *, no_debt: bool) -> None:
        """Record bytes that were appended through a peer. Old bytes (`no_debt`) are ignored.

        A rate starts at 0. If all old bytes counted at once, the rate would be higher than it ever was.
        """
        if self.elsewhere is not None and not no_debt:
            self.elsewhere.record(amount, now)
            self.elsewhere_bytes += amount


class TopicUse(AppendedBytes):
    """The meters of one topic. `name` is the topic's name, or a text with its id while the name is unknown."""

    __slots__ = ("_unlisted_at", "labelled", "name", "refused_bytes", "throttled_bytes", "throttled_total")

    def __init__(self, name: str, rate: Rate, labelled: bool, capacity_bytes: float = 0.0) -> None:
        super().__init__(rate, capacity_bytes)
        self.name = name
        self.labelled = labelled
        self._unlisted_at = -1  # `appended_bytes` and `throttled_total` at the last list without the topic
        self.throttled_bytes = 0
        self.throttled_total = 0
        self.refused_bytes: Counter[str] = Counter()

    def unused_while_unlisted(self) -> bool:
        """Called for each list of topics without this one. True if nobody has used the topic since the call before.

        Weir's user may lack the right to describe a topic that clients use.
        """
        before, self._unlisted_at = self._unlisted_at, self.appended_bytes + self.throttled_total
        return before == self._unlisted_at

    def add(self, others: list["TopicUse"]) -> None:
        """Add the counters of other topics. The rates stay the same."""
        # Thousands of topics are added counter by counter, because that takes a third of the time.
        self.appended_bytes += sum([use.appended_bytes for use in others])
        self.throttled_bytes += sum([use.throttled_bytes for use in others])
        self.throttled_total += sum([use.throttled_total for use in others])
        for refused in [use.refused_bytes for use in others if use.refused_bytes]:
            self.refused_bytes.update(refused)
