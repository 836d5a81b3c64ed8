"""Topic quotas: thresholds on the bytes appended per topic and in total (Kafka's proposal "broker side quota").

A topic is over its share while the total rate is above the total threshold and the topic's rate is above its own threshold.
Topics without an explicit threshold share the rest of the total evenly.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar, Final

from gateway.features.topic_quotas.report import TopicRow, TopicsReport, TopicTotals
from gateway.features.topic_quotas.topic_meters import RATES, WINDOWED, AppendedBytes, TopicUse, seconds_kept
from gateway.quotas.entity import OTHER, Tags
from gateway.quotas.meter import Window
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.rate import Rate
from gateway.quotas.shared_meter import UsageAccount, UsageKey
from gateway.steps import Steps

MAX_TOPICS: Final = 100_000
"""The maximum number of topics with meters. All further topics share one set of meters."""

MAX_LABELLED: Final = 1_000
"""The maximum number of topics that metrics show by name."""

TOPIC: Final = "topic"
ALL_TOPICS: Final = "topics"
"""The kinds of accounts that gateways share: one topic, and all topics together."""

MAX_NAMELESS: Final = 1_000
"""The maximum number of topics with a known id and an unknown name, until the next list of the cluster's topics."""

_STEP_ROWS: Final = 8
_STEP_TOPICS: Final = 64
_STEP_NAMES: Final = 512
"""The rows, idle meters and names of one step: some 0.05 ms of work."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Thresholds in bytes per second. The explicit thresholds add up to at most `total`. `meter` is a key of `RATES`.

    With `enforce=False` nothing is rejected; the bytes over quota are only counted.
    """

    total: float
    explicit: Mapping[str, float] = field(default_factory=dict)
    meter: str = "one_minute"
    window: Window = field(default_factory=Window)
    enforce: bool = True


class TopicListing:
    """The cluster's topics by name, and their names by id. The quotas of several brokers share it.

    `gone` has the topics of the listing before that this one lacks.
    """

    __slots__ = ("gone", "listed", "names")

    def __init__(self, topics: Mapping[str, bytes], own: OwnTopics, before: "TopicListing | None" = None) -> None:
        """`topics` has ids (zeros if the broker has no ids), without Kafka's internal topics. Weir's `own` are left out."""
        for name in own.names:
            if name in topics:
                own.identify(name, topics[name])
        topics = {name: topic_id for name, topic_id in topics.items() if name not in own.names}
        self.listed: Final = topics.keys()
        self.names: Final = {topic_id: name for name, topic_id in topics.items() if any(topic_id)}
        self.gone: Final = [] if before is None else [name for name in before.listed if name not in topics]


class TopicQuotas:
    """The quotas of topics in the cluster, or at the only `broker`.

    A key is the topic in a Produce request: the bytes of its name, or its id (16 bytes).

    `on_nameless` is called after the first bytes for an unknown id. The caller does not count bytes for Weir's own topics
    (`own`).
    """

    def __init__(
        self,
        settings: TopicSettings,
        now: float,
        *,
        own: OwnTopics,
        max_topics: int = MAX_TOPICS,
        max_labelled: int = MAX_LABELLED,
        on_nameless: Callable[[], None] | None = None,
        broker: str = "",
    ) -> None:
        self.settings = settings
        self.memory = seconds_kept(settings.meter, settings.window)
        self._broker = broker
        self.own = own
        self.default_threshold = 0.0
        self._max_topics, self._max_labelled = max_topics, max_labelled
        self._labelled = 0
        self._on_nameless = on_nameless
        self._total = AppendedBytes(self.new_rate(now), settings.total)
        self._listing = TopicListing({}, self.own)  # the latest list of the cluster's topics
        self._unlisted: dict[str, TopicUse] = {}  # the meters of topics that are not in it
        self._seen: set[str] = set()  # topics that were appended to since then and are not in the list
        self._left = 0.0  # of the total, for the topics without an explicit threshold
        self._young: set[str] = set()  # topics that were seen before the list and are not in it: the list may be older
        self._uses: dict[str, TopicUse] = {}
        self._touched: dict[TopicUse, None] = {}  # all with bytes that no message has, and some others
        self._nameless: dict[bytes, TopicUse] = {}
        self._still_nameless: set[bytes] = set()
        self._others = TopicUse(OTHER, self.new_rate(now), labelled=False)
        self._defaulted = 0
        self._update_default_threshold()

    def apply(self, settings: TopicSettings, now: float) -> None:
        """Change the thresholds from the next request on. Rates continue unless the algorithm changes."""
        before, self.settings = self.settings, settings
        self.memory = seconds_kept(settings.meter, settings.window)
        keeps_history = before.meter == settings.meter
        if not keeps_history or (settings.meter in WINDOWED and before.window != settings.window):
            for use in (self._total, *self._uses.values(), *self._nameless.values(), self._others):
                use.rate = self._successor(use.rate, now, keeps_history)
                use.elsewhere = None if use.elsewhere is None else self._successor(use.elsewhere, now, keeps_history)
        for use in (self._total, *self._uses.values()):
            use.capacity_bytes = settings.total
        self._update_default_threshold()

    def take(self, listing: TopicListing) -> None:
        """Take over the list of the cluster's topics. Forget topics that are missing in two lists and not used in between.

        The listing is the same as the last one, or follows that one, so that only topics without a place in it are visited.
        """
        self._listing = listing
        listed = listing.listed
        self._young, self._seen = {name for name in self._seen if name not in listed}, set()
        self._unlisted.update([(name, self._uses[name]) for name in listing.gone if name in self._uses])
        for name, use in list(self._unlisted.items()):
            if name in listed:
                del self._unlisted[name]
            elif use.unused_while_unlisted():
                del self._unlisted[name]
                self._forget(self._uses.pop(name))
        for topic_id in list(self._nameless):
            known = listing.names.get(topic_id)
            if known is not None:
                self._rename(self._nameless.pop(topic_id), known)
            elif topic_id in self._still_nameless:
                self._forget(self._nameless.pop(topic_id))
        self._still_nameless = set(self._nameless)
        self._update_default_threshold()

    def over(self, now: float) -> bool:
        """True if the total rate is above the total threshold."""
        return self._total.measure(now) > self.settings.total

    def find(self, key: bytes, *, by_id: bool) -> TopicUse | None:
        """The meters of a topic; None if no bytes were appended to it."""
        if not by_id:
            return self._uses.get(key.decode("utf-8", "replace"))
        name = self._listing.names.get(key)
        return self._nameless.get(key) if name is None else self._uses.get(name)

    def rejects(self, use: TopicUse | None, now: float) -> bool:
        return use is not None and self.over(now) and use.measure(now) > self.threshold(use.name)

    def threshold(self, topic: str) -> float:
        return self.settings.explicit.get(topic, self.default_threshold)

    def appended(self, key: bytes, size: int, now: float, *, by_id: bool) -> TopicUse:
        """Count `size` bytes of record batches that the broker has appended."""
        use = self.find(key, by_id=by_id) or self._create(key, now, by_id=by_id)
        if use.appended_bytes == use.shared_total:
            self._touched[use] = None
        use.appended_bytes += size
        use.rate.record(size, now)
        self._total.rate.record(size, now)
        self._total.appended_bytes += size
        return use

    def throttled(self, use: TopicUse, size: int) -> None:
        """Count bytes that were rejected. Without enforcement they were appended all the same."""
        use.throttled_bytes += size
        use.throttled_total += 1

    def refused(self, key: bytes, size: int, reason: str, now: float, *, by_id: bool) -> TopicUse:
        """Count `size` bytes that the broker did not append. Bytes for an unknown topic count for the other topics.

        A client can invent any number of names, so unknown topics get no meters of their own.
        """
        use = self.find(key, by_id=by_id)
        if use is None:
            name = self._listing.names.get(key) if by_id else key.decode("utf-8", "replace")
            use = self._create(key, now, by_id=by_id) if name in self._listing.listed else self._others
        use.refused_bytes[reason] += size
        return use

    def totals(self, now: float) -> TopicTotals:
        total, rate = self.settings.total, self._total.measure(now)
        return TopicTotals(total, rate, rate > total, self.default_threshold, self._defaulted, self._broker)

    def rate(self, now: float) -> float:
        """Bytes per second of all topics together, through all gateways."""
        return self._total.measure(now)

    # A `SharedUsage` for sharing. Topics without a known name are not shared until the name is known.

    kinds: ClassVar[frozenset[str]] = frozenset((TOPIC, ALL_TOPICS))

    def accounts(self) -> Iterator[tuple[UsageKey, UsageAccount]]:
        yield (ALL_TOPICS, ""), self._total
        for name, use in list(self._uses.items()):
            yield (TOPIC, name), use

    def changed(self) -> Iterator[tuple[UsageKey, UsageAccount]]:
        """The accounts with bytes that this gateway has not published yet.

        Only topics with appends since the last call are visited, because a cluster may have many thousands of idle topics.
        """
        for use in list(self._touched):
            if use.appended_bytes == use.shared_total or self._uses.get(use.name) is not use:
                self._touched.pop(use, None)  # until its next bytes, or until its name is known
            else:
                yield (TOPIC, use.name), use
        if self._total.appended_bytes != self._total.shared_total:
            yield (ALL_TOPICS, ""), self._total

    def peer_account(self, kind: str, name: Tags | str, now: float) -> UsageAccount | None:
        """The account to which a peer's bytes are charged; None if this gateway does not share the topic."""
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
        """Create meters for topics that were in use before a restart."""
        for name in names:
            if name not in self._uses and name not in self.own.names and len(self._uses) < self._max_topics:
                self._uses[name] = use = self._new_use(name, now, self.settings.total)
                self._seen.add(name)
                if name not in self._listing.listed:
                    self._unlisted[name] = use
        self._update_default_threshold()

    def known(self, kind: str, name: str) -> AppendedBytes | None:
        return self._total if kind == ALL_TOPICS else self._uses.get(name)

    def report(self, now: float) -> Steps[TopicsReport]:
        rows = yield from self.rows(now)
        return TopicsReport(self.settings.meter, self.settings.enforce, self.totals(now), rows)

    def rows(self, now: float) -> Steps[list[TopicRow]]:
        """A row for each labelled topic, rows for idle topics while there is room, and one row for all others.

        The quotas of a single broker have no rows of idle topics. Topics may come and go between the steps: all names, and the
        counters of the row of the others, are those of the first step.
        """
        every = [*self._uses.values(), *self._nameless.values()]
        shown = [(use.name, use) for use in every if use.labelled]
        unnamed = [use for use in every if not use.labelled]
        used, listed, explicit = frozenset(self._uses), self._listing.listed, self.settings.explicit
        others = TopicUse(OTHER, self._others.rate, labelled=False)
        others.add([self._others, *unnamed])
        rows: list[TopicRow] = []
        for number, (name, use) in enumerate(shown, 1):
            rows.append(self._row(name, use, self.threshold(name), use.measure(now), now))
            if number % _STEP_ROWS == 0:
                yield
        idle: list[str] = []
        if not self._broker and len(rows) < self._max_labelled:
            unlisted = [name for name in explicit if name not in listed]
            idle = yield from _first(chain(listed, unlisted), used, self._max_labelled - len(rows))
        for number, name in enumerate(idle, 1):
            rows.append(self._row(name, TopicUse(name, self._others.rate, labelled=True), self.threshold(name), 0.0, now))
            if number % _STEP_ROWS == 0:
                yield
        rate = self._others.measure(now)
        for number, use in enumerate(unnamed, 1):
            rate += use.measure(now)
            if number % _STEP_TOPICS == 0:
                yield
        if rate or others.appended_bytes or others.throttled_bytes or others.refused_bytes:
            rows.append(self._row(OTHER, others, None, rate, now))
        return rows

    def _row(self, name: str, use: TopicUse, threshold: float | None, rate: float, now: float) -> TopicRow:
        return TopicRow(
            topic=name,
            threshold=threshold,
            explicit=name in self.settings.explicit,
            rate=rate,
            appended_bytes=use.appended_bytes,
            throttled_bytes=use.throttled_bytes,
            throttled_total=use.throttled_total,
            refused_bytes=dict(use.refused_bytes),
            rejected=threshold is not None and rate > threshold and self.over(now),
            broker=self._broker,
        )

    def _successor(self, rate: Rate, now: float, keeps_history: bool) -> Rate:
        """A new rate for the current settings. With `keeps_history` it takes over the use in `rate`."""
        new = self.new_rate(now)
        if keeps_history:
            new.restore(rate.dump(now), now)
        return new

    def new_rate(self, now: float) -> Rate:
        return RATES[self.settings.meter](self.settings.window, now)

    def _create(self, key: bytes, now: float, *, by_id: bool) -> TopicUse:
        """New meters for a topic, or the meters of the other topics if there is no room."""
        known = self._listing.names.get(key) if by_id else key.decode("utf-8", "replace")
        full = len(self._uses) >= self._max_topics if known is not None else len(self._nameless) >= MAX_NAMELESS
        if full:
            return self._others
        if known is None:
            self._nameless[key] = use = self._new_use(f"(id {_shown(key)})", now, 0.0)
            if self._on_nameless is not None:
                self._on_nameless()
            return use
        self._uses[known] = use = self._new_use(known, now, self.settings.total)
        if known not in self._listing.listed:  # `_young` can't have it: young topics have meters already
            self._unlisted[known] = use
            self._seen.add(known)
            self._defaulted += known not in self.settings.explicit
            self._divide()
        return use

    def _new_use(self, name: str, now: float, capacity: float) -> TopicUse:
        labelled = self._labelled < self._max_labelled
        self._labelled += labelled
        return TopicUse(name, self.new_rate(now), labelled, capacity)

    def _rename(self, use: TopicUse, name: str) -> None:
        """Set the name of a topic whose id was unknown."""
        old = self._uses.get(name)
        if old is None:
            use.name, use.capacity_bytes = name, self.settings.total
            self._uses[name] = old = use
        else:
            old.add([use])
            self._touched.pop(use, None)
            self._labelled -= use.labelled
        self._touched[old] = None

    def _forget(self, use: TopicUse) -> None:
        """Remove a deleted topic. The row of the other topics keeps its bytes, so that no counter falls."""
        self._touched.pop(use, None)
        if use.labelled:
            self._labelled -= 1
        else:
            self._others.add([use])

    def _update_default_threshold(self) -> None:
        """Divide the rest of the total evenly among the topics without an explicit threshold."""
        explicit, listed = self.settings.explicit, self._listing.listed
        # `set - dict.keys()` would visit all keys.
        unlisted = [name for name in self._seen | self._young if name not in explicit and name not in listed]
        self._defaulted = len(listed) - sum(name in listed for name in explicit) + len(unlisted)
        self._left = max(0.0, self.settings.total - sum(explicit.values()))
        self._divide()

    def _divide(self) -> None:
        self.default_threshold = self._left / max(1, self._defaulted)


def _first(names: Iterable[str], without: Set[str], most: int) -> Steps[list[str]]:
    """The first `most` names in alphabetical order."""
    found: list[str] = []
    for number, name in enumerate(names, 1):
        if name not in without:
            found.append(name)
        if number % _STEP_NAMES == 0:
            found.sort()
            del found[most:]
            yield
    found.sort()
    return found[:most]


def _shown(topic_id: bytes) -> str:
    """The spelling of a topic id in Kafka's tools."""
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode()
