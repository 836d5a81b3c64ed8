"""Connects topic quotas to the config, the quota API, the cluster's topics, the Produce requests, and the events."""

import asyncio
import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import inf

from gateway import clock
from gateway.alter_queue import AlterQueue
from gateway.background import BackgroundTasks
from gateway.cluster.client import ClusterError
from gateway.cluster.metadata import ClusterMetadata, Subscription
from gateway.feature import Feature
from gateway.features.topic_quotas.config import TopicsSection
from gateway.features.topic_quotas.handlers import handler_factories
from gateway.features.topic_quotas.metrics import METRICS
from gateway.features.topic_quotas.produce_inspector import TopicInspection
from gateway.features.topic_quotas.producer_turns import PRODUCERS
from gateway.features.topic_quotas.rejections import RejectionFolder
from gateway.features.topic_quotas.report import TopicsReport
from gateway.features.topic_quotas.rules import TopicSettings
from gateway.features.topic_quotas.scoped_quotas import ScopedTopicQuotas
from gateway.features.topic_quotas.thresholds import KEY, TOTAL, TopicLimits, TopicThresholds, thresholds
from gateway.observer import Outlet
from gateway.proxy.handler import HandlerFactory
from gateway.proxy.produce_gate import ProducedTopics
from gateway.quotas.entity import DynamicQuotas, Tags, short_name
from gateway.quotas.meter import Window
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.recent_use import TopicRateUse
from gateway.quotas.shared_meter import UsageAccount, UsageKey
from gateway.steps import Steps, at_once
from gateway.time_slices import in_slices
from protocol.bodies.topic_metadata import TopicMetadata

_log = logging.getLogger("weir.cluster")


class TopicQuotasFeature(Feature[TopicsSection]):
    """Does nothing while `quotas.topics` is not configured. Sessions get their inspectors from `produced`.

    It is a `SharedUsage` for sharing; without topic quotas it has no accounts.
    """

    page = "topics"
    metrics = METRICS
    kinds = ScopedTopicQuotas.kinds

    def __init__(
        self,
        section: TopicsSection,
        metadata: ClusterMetadata,
        outlet: Outlet,
        queue: AlterQueue,
        own: OwnTopics,
    ) -> None:
        """`own`: the topics that are not counted."""
        self.produced = ProducedTopics()
        self.thresholds = TopicThresholds(queue)
        self._metadata = metadata
        self._own = own
        self._inspection: TopicInspection | None = None
        self._quotas: ScopedTopicQuotas | None = None
        self._folder = RejectionFolder(outlet)
        self._subscription: Subscription | None = None
        self._listing_fails = False
        self._section = section
        self._tasks: BackgroundTasks | None = None

    @property
    def quotas(self) -> ScopedTopicQuotas | None:
        """The active quotas; None if topics have no quotas."""
        return None if self._task is None else self._quotas

    def handlers(self) -> Mapping[int, HandlerFactory]:
        return handler_factories(self.thresholds)

    def start(self, tasks: BackgroundTasks) -> None:
        self._tasks = tasks
        self._configure(tasks)

    async def stop(self) -> None:
        """Report the folded rejections now. `quotas` stays, because RecentUsage saves it later."""
        await in_slices(self._folder.flush(inf))
        await super().stop()

    def tick(self, now: float) -> Steps[None]:
        return self._folder.flush(now)

    def report(self) -> TopicsReport | None:
        return at_once(self.report_in_steps())

    def report_in_steps(self) -> Steps[TopicsReport | None]:
        return None if self.quotas is None else (yield from self.quotas.report(clock.monotonic()))

    def apply(self, section: TopicsSection) -> list[str]:
        """The caller then makes the engine recall its buckets, so that sessions read `produced` again."""
        before, self._section = self._section, section
        if section == before or self._tasks is None:
            return []
        self._configure(self._tasks)
        return self._notes(before, section)

    def override(self, quotas: DynamicQuotas) -> None:
        """Let the thresholds of the quota API override the thresholds of the file, from the next request on."""
        self.thresholds.dynamic = thresholds(quotas)
        settings = topic_settings(self._section, self.thresholds.dynamic)
        if settings is not None and self.quotas is not None:
            self.quotas.apply(settings, clock.monotonic())

    def _notes(self, old: TopicsSection, new: TopicsSection) -> list[str]:
        """Notes about topic configs that still override changed thresholds of the file."""
        if new.topics is None:
            return []
        before = {} if old.topics is None else old.topics.explicit
        dynamic = self.thresholds.dynamic
        notes = [
            f"quotas.topics.{KEY}.{topic} is {threshold}, but the topic's config {dynamic[topic]:.0f} stays in effect:"
            f" to use the file's value, remove the config (kafka-configs.sh --alter --delete-config {KEY})"
            for topic, threshold in new.topics.explicit.items()
            if topic in dynamic and before.get(topic) != threshold
        ]
        explicit = sum({**new.topics.explicit, **dynamic}.values())
        if explicit > new.topics.total:
            notes.append(
                f"quotas.topics.{TOTAL} is {new.topics.total}, but the explicit thresholds of file and topic configs add up to"
                f" {explicit:.0f}. Nothing is left for other topics: raise the total, or lower some of {KEY}"
            )
        return notes

    def _configure(self, tasks: BackgroundTasks) -> None:
        now, section = clock.monotonic(), self._section
        of_file, settings = topic_settings(section), topic_settings(section, self.thresholds.dynamic)
        self.thresholds.of_file = None if of_file is None else TopicLimits(of_file.total, of_file.explicit)
        if section.topics is None or settings is None:
            self.produced.make_inspector = None
            if self._task is not None:
                self._task.cancel()
            self._task = None
            return
        if self._task is not None and (self._quotas is None or self._quotas.by_broker != section.by_broker):
            self._task.cancel()
            self._task = None
        if self.quotas is not None:
            self.quotas.apply(settings, now)
        else:
            self._quotas = quotas = ScopedTopicQuotas(
                settings, now, by_broker=section.by_broker, on_nameless=self._hurry, own=self._own
            )
            if self._inspection is None:
                self._inspection = TopicInspection(quotas.whole, section.topics.error_code, self._folder.note)
            self._inspection.quotas = quotas.whole  # connections may still use the inspection of earlier quotas
            self._inspection.at_broker = quotas.of if quotas.by_broker else None
            self._listing_fails = False
            self._task = tasks.start("list the cluster's topics", lambda: self._list_topics(quotas))
        if self._inspection is not None:
            self._inspection.error_code = section.topics.error_code
            self.produced.make_inspector = self._inspection.open

    async def _list_topics(self, quotas: ScopedTopicQuotas) -> None:
        """Subscribe to the list of topics until cancelled."""

        def note(topics: Sequence[TopicMetadata]) -> None:
            if self._listing_fails:
                _log.info("topics are listed again")
            self._listing_fails = False
            listed = [topic for topic in topics if not topic.error and not topic.internal]
            quotas.update_topics({topic.name: topic.topic_id for topic in listed if topic.name})

        with self._metadata.subscribe(on_topics=note, on_failure=self._note_failure) as self._subscription:
            await asyncio.Event().wait()

    def _note_failure(self, error: ClusterError) -> None:
        if not self._listing_fails:
            _log.warning("topics can't be listed, so topics that clients have used share the default threshold: %s", error)
        self._listing_fails = True

    def _hurry(self) -> None:
        """Read the list of topics soon, because a client has used an unknown topic."""
        if self._subscription is not None:
            self._subscription.hurry()

    @property
    def memory(self) -> float:
        return 0.0 if self.quotas is None else self.quotas.memory

    def accounts(self) -> Iterable[tuple[UsageKey, UsageAccount]]:
        return () if self.quotas is None else self.quotas.accounts()

    def changed(self) -> Iterable[tuple[UsageKey, UsageAccount]]:
        return () if self.quotas is None else self.quotas.changed()

    def peer_account(self, kind: str, name: Tags | str, now: float) -> UsageAccount | None:
        return None if self.quotas is None else self.quotas.peer_account(kind, name, now)

    # The `SharedCounts` for sharing: a topic's producers at all gateways take turns.

    def open_counts(
        self,
        members: int,  # noqa: ARG002
        known: Container[tuple[str, str]],  # noqa: ARG002
    ) -> Iterator[tuple[tuple[str, str], int, int]]:
        if self._inspection is not None:
            for name, count in self._inspection.turns.producers(clock.monotonic()):
                yield (PRODUCERS, short_name(name)), count, count

    def heed_peers(self, peers: Mapping[tuple[str, str], int], parts: int) -> None:  # noqa: ARG002
        if self._inspection is not None:
            self._inspection.turns.peers = peers

    def recent_uses(self, accounts: Iterable[tuple[UsageKey, UsageAccount]], now: float) -> Iterable[TopicRateUse]:
        return () if self.quotas is None else self.quotas.recent_uses(accounts, now)

    def restore_uses(self, saved: Iterable[TopicRateUse], now: float) -> None:
        if self.quotas is not None:
            self.quotas.restore_uses(saved, now)


def topic_settings(config: TopicsSection, overrides: Mapping[str, float] | None = None) -> TopicSettings | None:
    """The settings of a config file. Thresholds in `overrides` override the file's. None if topics have no quotas."""
    if config.topics is None:
        return None
    return TopicSettings(
        total=float(config.topics.total),
        explicit={name: float(threshold) for name, threshold in config.topics.explicit.items()} | dict(overrides or {}),
        meter=config.topics.meter,
        window=Window(config.window.samples, float(config.window.seconds)),
        enforce=config.enforce,
    )
