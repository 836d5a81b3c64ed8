"""The quotas of topics in their scope: one `TopicQuotas` for the whole cluster, or one for each broker (`quotas.scope`).

Gateways share the use of topics by broker under kinds of their own, which an older Weir ignores. The name of a topic's account
then is `BROKER/TOPIC`; no topic's name has a slash.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, Final

from gateway import clock
from gateway.features.topic_quotas.recent_topics import restore_topics, topic_uses
from gateway.features.topic_quotas.report import TopicsReport
from gateway.features.topic_quotas.rules import (
    ALL_TOPICS,
    MAX_LABELLED,
    TOPIC,
    TopicListing,
    TopicQuotas,
    TopicSettings,
)
from gateway.quotas.entity import BOOTSTRAP, Tags
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.recent_use import TopicRateUse
from gateway.quotas.scope import node_id
from gateway.quotas.shared_meter import UsageAccount, UsageKey
from gateway.steps import Steps

MAX_BROKERS: Final = 1_000
"""The maximum number of brokers with quotas of their own. Peers name brokers too."""

LABELLED_AT_BROKER: Final = 300
"""The maximum number of topics that metrics show by name for each broker."""

_AT_BROKER: Final = {TOPIC: "broker_topic", ALL_TOPICS: "broker_topics"}
_OF_CLUSTER: Final = {kind: of_cluster for of_cluster, kind in _AT_BROKER.items()}


def name_at_broker(broker: int, topic: Tags | str) -> str:
    return f"{broker}/{topic}"


class ScopedTopicQuotas:
    """Not `by_broker`: the cluster's quotas have the key `BOOTSTRAP`. It is a `SharedUsage` for sharing."""

    kinds: ClassVar[frozenset[str]] = frozenset((*_AT_BROKER, *_OF_CLUSTER))

    def __init__(
        self,
        settings: TopicSettings,
        now: float,
        *,
        own: OwnTopics,
        by_broker: bool = False,
        on_nameless: Callable[[], None] | None = None,
    ) -> None:
        """`on_nameless` and `own` as for `TopicQuotas`."""
        self.settings = settings
        self.by_broker = by_broker
        self._own = own
        self._on_nameless = on_nameless
        self._listed: tuple[Mapping[str, bytes], frozenset[str]] = ({}, self._own.names)
        self._listing = TopicListing({}, self._own)
        self._at: dict[int, TopicQuotas] = {}
        self.whole = self._new(BOOTSTRAP, now)

    def of(self, broker: int) -> TopicQuotas:
        """The quotas at a broker, made if they are missing. Beyond `MAX_BROKERS`, those of bootstrap connections."""
        found = self._at.get(broker)
        if found is None:
            found = self.whole if len(self._at) >= MAX_BROKERS else self._new(broker, clock.monotonic())
        return found

    def apply(self, settings: TopicSettings, now: float) -> None:
        self.settings = settings
        for quotas in self._at.values():
            quotas.apply(settings, now)

    def update_topics(self, topics: Mapping[str, bytes]) -> None:
        """Take over the cluster's topics, as for `TopicListing`. Mostly they are those of the last call."""
        given = topics, self._own.names
        if given != self._listed:
            self._listed, self._listing = given, TopicListing(topics, self._own, self._listing)
        for quotas in self._at.values():
            quotas.take(self._listing)

    def report(self, now: float) -> Steps[TopicsReport]:
        if not self.by_broker:
            return (yield from self.whole.report(now))
        reports: list[TopicsReport] = []
        for broker, quotas in sorted(self._at.items()):
            if broker != BOOTSTRAP:
                reports.append((yield from quotas.report(now)))
        at_bootstrap = yield from self.whole.report(now)
        if not reports or any(row.appended_bytes or row.throttled_total or row.refused_bytes for row in at_bootstrap.rows):
            reports.append(at_bootstrap)
        brokers = [report.total for report in reports]
        rows = [row for report in reports for row in report.rows]
        busiest = max(brokers, key=lambda total: total.rate)
        return TopicsReport(self.settings.meter, self.settings.enforce, busiest, rows, brokers)

    @property
    def memory(self) -> float:
        return self.whole.memory

    def accounts(self) -> Iterator[tuple[UsageKey, UsageAccount]]:
        for broker, quotas in list(self._at.items()):
            for key, account in quotas.accounts():
                yield self._key(broker, key), account

    def changed(self) -> Iterator[tuple[UsageKey, UsageAccount]]:
        for broker, quotas in list(self._at.items()):
            for key, account in quotas.changed():
                yield self._key(broker, key), account

    def peer_account(self, kind: str, name: Tags | str, now: float) -> UsageAccount | None:
        """The account to which a peer's bytes are charged. None if the peer has another scope."""
        if not isinstance(name, str) or (kind in _OF_CLUSTER) != self.by_broker:
            return None
        if not self.by_broker:
            return self.whole.peer_account(kind, name, now)
        text, _, topic = name.partition("/")
        broker = node_id(text)
        if broker is None or (broker not in self._at and len(self._at) >= MAX_BROKERS):
            return None
        return self.of(broker).peer_account(_OF_CLUSTER[kind], topic, now)

    def recent_uses(self, accounts: Iterable[tuple[UsageKey, UsageAccount]], now: float) -> Iterator[TopicRateUse]:
        """The use that these accounts still count. Accounts of a scope before are left out."""
        for (kind, name), account in accounts:
            if not isinstance(name, str) or (kind in _OF_CLUSTER) != self.by_broker:
                continue
            if not self.by_broker:
                yield from topic_uses(self.whole, [((kind, name), account)], now)
            else:
                broker, _, topic = name.partition("/")
                yield from topic_uses(self.whole, [((_OF_CLUSTER[kind], topic), account)], now, int(broker))

    def restore_uses(self, saved: Iterable[TopicRateUse], now: float) -> None:
        """Restore saved use of the same scope."""
        by_broker: dict[int, list[TopicRateUse]] = {}
        for each in saved:
            if (each.broker is not None) == self.by_broker:
                by_broker.setdefault(BOOTSTRAP if each.broker is None else each.broker, []).append(each)
        for broker, uses in by_broker.items():
            restore_topics(self.of(broker), uses, now)

    def _key(self, broker: int, key: UsageKey) -> UsageKey:
        kind, topic = key
        return (_AT_BROKER[kind], name_at_broker(broker, topic)) if self.by_broker else key

    def _new(self, broker: int, now: float) -> TopicQuotas:
        shown = Tags(None, None, broker=broker).broker_text if self.by_broker else ""
        quotas = TopicQuotas(
            self.settings,
            now,
            max_labelled=LABELLED_AT_BROKER if self.by_broker else MAX_LABELLED,
            on_nameless=self._on_nameless,
            own=self._own,
            broker=shown,
        )
        quotas.take(self._listing)
        self._at[broker] = quotas
        return quotas
