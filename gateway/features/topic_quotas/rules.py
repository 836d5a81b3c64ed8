"""Topic quotas: thresholds on what is appended to topics, by topic and in all (Kafka's "broker side quota", never shipped).

A topic is over its share iff all topics together are above the total threshold and it is above its own. A topic without an
explicit threshold has an equal part of what those leave of the total.
"""

from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.features.topic_quotas.one_minute_rate import OneMinuteRate
from gateway.quotas.entity import OTHER, Tags
from gateway.quotas.meter import Window
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.rate import Rate, SampledRate
from gateway.quotas.shared_meter import SharedMeter, UsageAccount

MAX_TOPICS: Final = 100_000
"""Topics with meters of their own; those past it share one."""

MAX_LABELLED: Final = 1_000
"""Topics that are shown by name."""

TOPIC: Final = "topic"
ALL_TOPICS: Final = "topics"
"""What sharing calls one of them, by its name, and all of them."""

MAX_NAMELESS: Final = 1_000
"""Topics that are known by their ids alone, until the cluster has been asked for their names."""

RATES: Final[Mapping[str, Callable[[Window, float], Rate]]] = {
    "one_minute": lambda _, now: OneMinuteRate(now),
    "window": lambda window, _: SampledRate(window),
}
"""The ways to reckon a rate, by their names in the config file, the default one first."""

WINDOWED: Final = frozenset({"window"})
"""Those that depend on the quota window."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Thresholds in bytes per second; the explicit ones add up to `total` at most. `meter` is one of `RATES`.

    Where `enforce` is False it is only counted what would have been rejected.
    """

    total: float
    explicit: Mapping[str, float] = field(default_factory=dict)
    meter: str = "one_minute"
    window: Window = field(default_factory=Window)
    enforce: bool = True


@dataclass(frozen=True, slots=True)
class TopicRow:
    """What one topic, or all that are not shown by name, has used. Bytes are those of record batches, through this gateway.

    `rate` is that of all gateways that share the threshold, per second.
    `refused` are bytes that the broker did not append, by the name of its error. `threshold` is None for all others together.
    """

    topic: str
    threshold: float | None
    explicit: bool
    rate: float
    appended_bytes: int
    throttled_bytes: int
    throttled_total: int
    refused_bytes: Mapping[str, int]
    rejected: bool


@dataclass(frozen=True, slots=True)
class TopicTotals:
    """All topics together, through all gateways; `over` where those above their own threshold are rejected."""

    threshold: float
    rate: float
    over: bool
    default_threshold: float
    defaulted: int
    """How many topics share what the explicit thresholds leave."""


@dataclass(frozen=True, slots=True)
class TopicsReport:
    """Everything that is shown of topic quotas."""

    meter: str
    enforced: bool
    total: TopicTotals
    rows: list[TopicRow]


class AppendedBytes:
    """What was appended to something, through this gateway (`rate`) and, as far as that is known, through others
    (`elsewhere`, None until something is). `much` is what other gateways should hear of at once."""

    __slots__ = ("appended_bytes", "elsewhere", "much", "rate", "shared_total")

    def __init__(self, rate: Rate, much: float = 0.0) -> None:
        self.shared_total = 0
        self.rate = rate
        self.elsewhere: Rate | None = None
        self.much = much
        self.appended_bytes = 0

    def measure(self, now: float) -> float:
        """Bytes per second, through all gateways."""
        rate = self.rate.measure(now)
        return rate if self.elsewhere is None else rate + self.elsewhere.measure(now)

    def total(self) -> int:
        """Bytes appended through this gateway."""
        return self.appended_bytes

    def recent(self, now: float) -> int:
        """What still counts for the rate."""
        return round(self.rate.kept(now))

    def capacity(self) -> float:
        return self.much

    def shared_meter(self) -> SharedMeter | None:
        return None

    def charge_others(self, amount: int, now: float, *, no_debt: bool) -> None:
        """Other gateways have had so much appended. What was some time ago is left out: a rate begins at 0, and all of it at
        once would be another one than it was."""
        if self.elsewhere is not None and not no_debt:
            self.elsewhere.record(amount, now)


class TopicUse(AppendedBytes):
    """One topic's meters. `name` is that of the topic, or stands for its id as long as that is all that is known."""

    __slots__ = ("labelled", "name", "refused_bytes", "throttled_bytes", "throttled_total")

    def __init__(self, name: str, rate: Rate, labelled: bool, much: float = 0.0) -> None:
        super().__init__(rate, much)
        self.name = name
        self.labelled = labelled
        self.throttled_bytes = 0
        self.throttled_total = 0
        self.refused_bytes: Counter[str] = Counter()

    def add(self, other: "TopicUse") -> None:
        """Count what another one has counted as well."""
        self.appended_bytes += other.appended_bytes
        self.throttled_bytes += other.throttled_bytes
        self.throttled_total += other.throttled_total
        self.refused_bytes.update(other.refused_bytes)


class TopicQuotas:
    """All topics of a cluster. Topics are found by their key on the wire: the name's bytes, or the id of 16 bytes.

    `on_nameless` is called when something was appended to a topic whose id is not known. The caller leaves out what is
    appended to topics of Weir's own (`own`).
    """

    def __init__(
        self,
        settings: TopicSettings,
        now: float,
        *,
        max_topics: int = MAX_TOPICS,
        max_labelled: int = MAX_LABELLED,
        on_nameless: Callable[[], None] | None = None,
        own: OwnTopics | None = None,
    ) -> None:
        self.settings = settings
        self.own = own or OwnTopics()
        self.default_threshold = 0.0
        self._max_topics = max_topics
        self._max_labelled = max_labelled
        self._labelled = 0
        self._on_nameless = on_nameless
        self._total = AppendedBytes(self.new_rate(now), settings.total)
        self._listed: set[str] = set()  # what the cluster said when it was last asked
        self._seen: set[str] = set()  # what else has been appended to since
        self._young: set[str] = set()  # what was so when it was last asked: its answer may be older than these topics
        self._names: dict[bytes, str] = {}
        self._uses: dict[str, TopicUse] = {}
        self._nameless: dict[bytes, TopicUse] = {}
        self._still_nameless: set[bytes] = set()
        self._others = TopicUse(OTHER, self.new_rate(now), labelled=False)
        self._defaulted = 0
        self._share_out()

    def apply(self, settings: TopicSettings, now: float) -> None:
        """Change the thresholds; they hold from the next request on. Rates go on, unless it changes how they are reckoned."""
        before, self.settings = self.settings, settings
        keeps_history = before.meter == settings.meter
        if not keeps_history or (settings.meter in WINDOWED and before.window != settings.window):
            for use in (self._total, *self._uses.values(), *self._nameless.values(), self._others):
                use.rate = self._following(use.rate, now, keeps_history)
                use.elsewhere = None if use.elsewhere is None else self._following(use.elsewhere, now, keeps_history)
        for use in (self._total, *self._uses.values()):
            use.much = settings.total
        self._share_out()

    def listed(self, topics: Mapping[str, bytes]) -> None:
        """The cluster's topics of this moment by name, with their ids (zeros where the broker has none), without internal
        ones. Those that are gone are forgotten. Weir's own do not count either."""
        for name in self.own.names:
            if name in topics:
                self.own.identify(name, topics[name])
        topics = {name: topic_id for name, topic_id in topics.items() if name not in self.own.names}
        self._listed = set(topics)
        self._young, self._seen = self._seen - topics.keys(), set()
        self._names = {topic_id: name for name, topic_id in topics.items() if any(topic_id)}
        for name in [name for name in self._uses if name not in topics and name not in self._young]:
            self._forget(self._uses.pop(name))
        for topic_id in list(self._nameless):
            known = self._names.get(topic_id)
            if known is not None:
                self._named(self._nameless.pop(topic_id), known)
            elif topic_id in self._still_nameless:
                self._forget(self._nameless.pop(topic_id))
        self._still_nameless = set(self._nameless)
        self._share_out()

    def over(self, now: float) -> bool:
        """Whether all topics together are above the total threshold."""
        return self._total.measure(now) > self.settings.total

    def find(self, key: bytes, *, by_id: bool) -> TopicUse | None:
        """The meters of a topic, None where nothing was ever appended to it."""
        if not by_id:
            return self._uses.get(key.decode("utf-8", "replace"))
        name = self._names.get(key)
        return self._nameless.get(key) if name is None else self._uses.get(name)

    def rejects(self, use: TopicUse | None, now: float) -> bool:
        """Whether what comes for a topic now is not to be appended."""
        return use is not None and self.over(now) and use.measure(now) > self.threshold(use.name)

    def threshold(self, topic: str) -> float:
        """A topic's own threshold, explicit or not."""
        return self.settings.explicit.get(topic, self.default_threshold)

    def appended(self, key: bytes, size: int, now: float, *, by_id: bool) -> TopicUse:
        """The broker has appended `size` bytes of record batches to a topic."""
        use = self.find(key, by_id=by_id) or self._create(key, now, by_id=by_id)
        use.appended_bytes += size
        use.rate.record(size, now)
        self._total.rate.record(size, now)
        self._total.appended_bytes += size
        return use

    def throttled(self, use: TopicUse, size: int) -> None:
        """So much was rejected, or would have been."""
        use.throttled_bytes += size
        use.throttled_total += 1

    def refused(self, key: bytes, size: int, reason: str, now: float, *, by_id: bool) -> TopicUse:
        """The broker has not appended `size` bytes; what was meant for topics that nobody knows is counted as others'."""
        use = self.find(key, by_id=by_id)
        if use is None:
            name = self._names.get(key) if by_id else key.decode("utf-8", "replace")
            use = self._create(key, now, by_id=by_id) if name in self._listed else self._others
        use.refused_bytes[reason] += size
        return use

    def totals(self, now: float) -> TopicTotals:
        """All topics together."""
        rate = self._total.measure(now)
        return TopicTotals(self.settings.total, rate, self.over(now), self.default_threshold, self._defaulted)

    def rate(self, now: float) -> float:
        """The bytes per second that all topics together get, through all gateways."""
        return self._total.measure(now)

    # As sharing sees them. A topic that is known by its id alone is told of once it has a name.

    @property
    def kinds(self) -> frozenset[str]:
        """What its accounts are called."""
        return frozenset((TOPIC, ALL_TOPICS))

    def accounts(self) -> Iterator[tuple[tuple[str, Tags | str], UsageAccount]]:
        """All topics together, and each by its name."""
        yield (ALL_TOPICS, ""), self._total
        for name, use in self._uses.items():
            yield (TOPIC, name), use

    def changed(self) -> list[tuple[tuple[str, Tags | str], UsageAccount]]:
        """Of those, the ones that have been appended to since sharing has taken note of them."""
        found: list[tuple[tuple[str, Tags | str], UsageAccount]] = []
        if self._total.appended_bytes != self._total.shared_total:
            found.append(((ALL_TOPICS, ""), self._total))
        for name, use in self._uses.items():
            if use.appended_bytes != use.shared_total:
                found.append(((TOPIC, name), use))
        return found

    def peer_account(self, kind: str, name: Tags | str, now: float) -> UsageAccount | None:
        """The meters of that topic, or of all of them."""
        if not isinstance(name, str) or name in self.own.names:
            return None
        use: AppendedBytes | None = self._total if kind == ALL_TOPICS else self._uses.get(name)
        if use is None:
            use = self._create(name.encode("utf-8", "replace"), now, by_id=False)
        if use is self._others:
            return None
        if use.elsewhere is None:
            use.elsewhere = self.new_rate(now)
        return use

    def expect(self, names: Iterable[str], now: float) -> None:
        """Have meters for topics that were appended to before a restart."""
        for name in names:
            if name not in self._uses and name not in self.own.names and len(self._uses) < self._max_topics:
                labelled = self._labelled < self._max_labelled
                self._labelled += labelled
                self._uses[name] = TopicUse(name, self.new_rate(now), labelled, self.settings.total)
                self._seen.add(name)
        self._share_out()

    def known(self, kind: str, name: str) -> AppendedBytes | None:
        """The meters of that topic, or of all of them, if there are any."""
        return self._total if kind == ALL_TOPICS else self._uses.get(name)

    def report(self, now: float) -> TopicsReport:
        """How things are."""
        return TopicsReport(self.settings.meter, self.settings.enforce, self.totals(now), self.snapshot(now))

    def snapshot(self, now: float) -> list[TopicRow]:
        """A row for each topic that is shown by name, idle or not, and one for all others."""
        shown = [use for use in (*self._uses.values(), *self._nameless.values()) if use.labelled]
        rows = [self._row(use, self.threshold(use.name), use.measure(now), now) for use in shown]
        room = self._max_labelled - len(rows)
        idle = sorted((self._listed | self.settings.explicit.keys()) - self._uses.keys())
        rows += [
            self._row(TopicUse(name, self._others.rate, labelled=True), self.threshold(name), 0.0, now) for name in idle[:room]
        ]
        others = TopicUse(OTHER, self._others.rate, labelled=False)
        others.add(self._others)
        rate = self._others.measure(now)
        for use in (*self._uses.values(), *self._nameless.values()):
            if not use.labelled:
                others.add(use)
                rate += use.measure(now)
        if rate or others.appended_bytes or others.throttled_bytes or others.refused_bytes:
            rows.append(self._row(others, None, rate, now))
        return rows

    def _row(self, use: TopicUse, threshold: float | None, rate: float, now: float) -> TopicRow:
        return TopicRow(
            topic=use.name,
            threshold=threshold,
            explicit=use.name in self.settings.explicit,
            rate=rate,
            appended_bytes=use.appended_bytes,
            throttled_bytes=use.throttled_bytes,
            throttled_total=use.throttled_total,
            refused_bytes=dict(use.refused_bytes),
            rejected=threshold is not None and rate > threshold and self.over(now),
        )

    def _following(self, rate: Rate, now: float, keeps_history: bool) -> Rate:
        """A rate as they are reckoned now. With `keeps_history` it begins with that of `rate`, of the same rule."""
        new = self.new_rate(now)
        if keeps_history:
            new.restore(rate.dump(now), now)
        return new

    def new_rate(self, now: float) -> Rate:
        """A rate as they are reckoned now."""
        return RATES[self.settings.meter](self.settings.window, now)

    def _create(self, key: bytes, now: float, *, by_id: bool) -> TopicUse:
        """The meters of a topic that something was appended to for the first time."""
        known = self._names.get(key) if by_id else key.decode("utf-8", "replace")
        full = len(self._uses) >= self._max_topics if known is not None else len(self._nameless) >= MAX_NAMELESS
        if full:
            return self._others
        labelled = self._labelled < self._max_labelled
        self._labelled += labelled
        if known is None:
            use = TopicUse(f"(id {_shown(key)})", self.new_rate(now), labelled)
            self._nameless[key] = use
            if self._on_nameless is not None:
                self._on_nameless()
            return use
        use = TopicUse(known, self.new_rate(now), labelled, self.settings.total)
        self._uses[known] = use
        if known not in self._listed:  # and not among the young, which have meters
            self._seen.add(known)
            self._share_out()
        return use

    def _named(self, use: TopicUse, name: str) -> None:
        """A topic that was known by its id has a name."""
        old = self._uses.get(name)
        if old is None:
            use.name, use.much = name, self.settings.total
            self._uses[name] = use
        else:
            old.add(use)
            self._labelled -= use.labelled

    def _forget(self, use: TopicUse) -> None:
        """A topic is gone. What was counted for the others goes on counting, so that no counter of theirs goes back."""
        if use.labelled:
            self._labelled -= 1
        else:
            self._others.add(use)

    def _share_out(self) -> None:
        """Divide what the explicit thresholds leave among the topics that have none."""
        explicit = self.settings.explicit
        self._defaulted = len((self._listed | self._seen | self._young) - explicit.keys())
        left = max(0.0, self.settings.total - sum(explicit.values()))
        self.default_threshold = left / max(1, self._defaulted)


def _shown(topic_id: bytes) -> str:
    """A topic id as Kafka's tools write it."""
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode()
