"""Connects topic quotas to the config, the quota API, the cluster's topics, the Produce requests, and the events."""

from collections.abc import Iterable, Mapping
from math import inf

from gateway import clock
from gateway.background import BackgroundTask, BackgroundTasks
from gateway.cluster.metadata import ClusterMetadata
from gateway.feature import Feature
from gateway.features.topic_quotas.config import TopicsSection
from gateway.features.topic_quotas.handlers import handler_factories
from gateway.features.topic_quotas.lookup import TopicWatch
from gateway.features.topic_quotas.metrics import METRICS
from gateway.features.topic_quotas.produce_inspector import TopicGate
from gateway.features.topic_quotas.recent_topics import restore_topics, topic_uses
from gateway.features.topic_quotas.rejections import RejectionFolder
from gateway.features.topic_quotas.rules import ALL_TOPICS, TOPIC, TopicQuotas, TopicSettings, TopicsReport
from gateway.features.topic_quotas.thresholds import KEY, TOTAL, AlterationQueue, TopicLimits, TopicThresholds, thresholds
from gateway.observer import Outlet
from gateway.proxy.handler import HandlerFactory
from gateway.proxy.produce_gate import ProducedTopics
from gateway.quotas.entity import DynamicQuotas, Tags
from gateway.quotas.meter import Window
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.recent_use import TopicSpent
from gateway.quotas.shared_meter import UsageAccount, UsageKey


class TopicLimiter(Feature[TopicsSection]):
    """Does nothing while `quotas.topics` is not configured. Sessions get their inspectors from `produced`."""

    page = "topics"
    metrics = METRICS

    def __init__(
        self,
        section: TopicsSection,
        metadata: ClusterMetadata,
        outlet: Outlet,
        queue: AlterationQueue,
        own: OwnTopics | None = None,
    ) -> None:
        """`own`: the topics that are not counted."""
        self.produced = ProducedTopics()
        self._metadata = metadata
        self._outlet = outlet
        self._own = own or OwnTopics()
        self._gate: TopicGate | None = None
        self._folder: RejectionFolder | None = None
        self._watch: TopicWatch | None = None
        self._task: BackgroundTask | None = None
        self._section = section
        self._tasks: BackgroundTasks | None = None
        self.thresholds = TopicThresholds(queue)

    def override(self, quotas: DynamicQuotas) -> None:
        """Let the thresholds of the quota API override the thresholds of the file, from the next request on."""
        self.thresholds.dynamic = thresholds(quotas)
        settings = topic_settings(self._section, self.thresholds.dynamic)
        if settings is not None and self._gate is not None and self._task is not None:
            self._gate.quotas.apply(settings, clock.monotonic())

    def handlers(self) -> Mapping[int, HandlerFactory]:
        return handler_factories(self.thresholds)

    def start(self, tasks: BackgroundTasks) -> None:
        self._tasks = tasks
        self._configure(tasks)

    def apply(self, section: TopicsSection) -> list[str]:
        """The caller then makes the engine recall its buckets, so that sessions read `produced` again."""
        before, self._section = self._section, section
        if section == before or self._tasks is None:
            return []
        self._configure(self._tasks)
        return self._notes(before, section)

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
            self._unwatch()
            return
        if self._gate is None:
            quotas = TopicQuotas(settings, now, on_nameless=self._hurry, own=self._own)
            folder = RejectionFolder(self._quotas, self._outlet)
            self._gate = TopicGate(quotas, section.topics.error_code, folder.note)
            self._folder = folder
        elif self._task is None:  # the quotas were removed meanwhile; connections may still use the gate
            self._gate.quotas = TopicQuotas(settings, now, on_nameless=self._hurry, own=self._own)
        self._gate.quotas.apply(settings, now)
        self._gate.error_code = section.topics.error_code
        self.produced.make_inspector = self._gate.open
        if self._task is None:
            self._watch = TopicWatch(self._metadata, self._gate.quotas.update_topics)
            self._task = tasks.start("list the cluster's topics", self._watch.run)

    async def stop(self) -> None:
        """Report the folded rejections now. `quotas` stays, because RecentUsage saves it later."""
        self.tick(inf)
        if self._task is not None:
            self._task.cancel()

    def _unwatch(self) -> None:
        self.produced.make_inspector = None
        if self._task is not None:
            self._task.cancel()
        self._task = self._watch = None

    @property
    def quotas(self) -> TopicQuotas | None:
        """The active quotas; None if topics have no quotas."""
        return self._gate.quotas if self._gate is not None and self._task is not None else None

    def tick(self, now: float) -> None:
        if self._folder is not None:
            self._folder.flush(now)

    def report(self) -> TopicsReport | None:
        if self._gate is None or self._task is None:
            return None
        return self._gate.quotas.report(clock.monotonic())

    # A `SharedUsage` for sharing; without topic quotas it has no accounts.

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset((TOPIC, ALL_TOPICS))

    def accounts(self) -> Iterable[tuple[UsageKey, UsageAccount]]:
        return self._gate.quotas.accounts() if self._gate is not None and self._task is not None else ()

    def changed(self) -> Iterable[tuple[UsageKey, UsageAccount]]:
        return self._gate.quotas.changed() if self._gate is not None and self._task is not None else ()

    def peer_account(self, kind: str, name: Tags | str, now: float) -> UsageAccount | None:
        if self._gate is None or self._task is None:
            return None
        return self._gate.quotas.peer_account(kind, name, now)

    def recent_uses(self, accounts: Iterable[tuple[UsageKey, UsageAccount]], now: float) -> Iterable[TopicSpent]:
        return () if self.quotas is None else topic_uses(self.quotas, accounts, now)

    def restore_uses(self, saved: Iterable[TopicSpent], seconds: float, now: float) -> None:
        """Restore the rates that were saved `seconds` ago. Does nothing if topics have no quotas."""
        if self.quotas is not None:
            restore_topics(self.quotas, saved, seconds, now)

    def _quotas(self) -> TopicQuotas:
        assert self._gate is not None  # noqa: S101 -- without a gate nothing is rejected
        return self._gate.quotas

    def _hurry(self) -> None:
        if self._watch is not None:
            self._watch.hurry()


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
