"""Topic quotas put together: thresholds from the config, the cluster's topics, the sessions that ask, what is told of it."""

import socket
from collections.abc import Callable, Iterable

from gateway import clock
from gateway.background import BackgroundTask, BackgroundTasks
from gateway.cluster.client import OwnClient
from gateway.cluster.topics import TopicWatch
from gateway.config import QuotasConfig
from gateway.events import TopicRejected
from gateway.observe.rejections import RejectionFolder
from gateway.quotas.account import Account
from gateway.quotas.entity import Tags
from gateway.quotas.meter import Window
from gateway.quotas.sharing.book import Entity
from gateway.quotas.topics import ALL_TOPICS, TOPIC, TopicQuotas, TopicSettings, TopicsReport
from gateway.session.exchanges.produced_topics import TopicGate
from gateway.session.produced import ProducedTopics


class TopicQuotasAtWork:
    """Nothing at all as long as `quotas.topics` is not configured; `produced` is how sessions find out."""

    def __init__(
        self,
        connect: Callable[[], OwnClient],
        gateway: str | None = None,
        emit: Callable[[TopicRejected], None] | None = None,
    ) -> None:
        """`gateway` is this one's name in events, which `emit` gets."""
        self.produced = ProducedTopics()
        self._connect = connect
        self._gateway = gateway or socket.gethostname()
        self._emit = emit
        self._gate: TopicGate | None = None
        self._folder: RejectionFolder | None = None
        self._watch: TopicWatch | None = None
        self._task: BackgroundTask | None = None

    def configure(self, config: QuotasConfig, tasks: BackgroundTasks) -> None:
        """Take over a configuration; the caller has the engine recall its buckets. `tasks` runs what has to run."""
        now = clock.monotonic()
        settings = topic_settings(config)
        if config.topics is None or settings is None:
            self.stop()
            return
        if self._gate is None:
            quotas = TopicQuotas(settings, now, on_nameless=self._hurry)
            folder = RejectionFolder(self._quotas, self._gateway, self._emit)
            self._gate = TopicGate(quotas, config.topics.error_code, folder.note)
            self._folder = folder
        elif self._task is None:  # they had been removed meanwhile; connections may still hold the gate
            self._gate.quotas = TopicQuotas(settings, now, on_nameless=self._hurry)
        self._gate.quotas.apply(settings, now)
        self._gate.error_code = config.topics.error_code
        self.produced.opener = self._gate.open
        if self._task is None:
            self._watch = TopicWatch(self._connect(), self._gate.quotas.listed)
            self._task = tasks.start("list the cluster's topics", self._watch.run)

    def stop(self) -> None:
        """Look at topics no more."""
        self.produced.opener = None
        if self._task is not None:
            self._task.cancel()
        self._task = self._watch = None

    @property
    def quotas(self) -> TopicQuotas | None:
        """Those at work; None where topics have no quotas."""
        return self._gate.quotas if self._gate is not None and self._task is not None else None

    def tick(self, now: float) -> None:
        """To be called once a second."""
        if self._folder is not None:
            self._folder.flush(now)

    def report(self) -> TopicsReport | None:
        """How things are; None where topics have no quotas."""
        if self._gate is None or self._task is None:
            return None
        return self._gate.quotas.report(clock.monotonic())

    # As sharing sees them, a `quotas.sharing.book.Book`: those that are at work, if any are.

    @property
    def kinds(self) -> frozenset[str]:
        """What its accounts are called."""
        return frozenset((TOPIC, ALL_TOPICS))

    def accounts(self) -> Iterable[tuple[Entity, Account]]:
        """All of them."""
        return self._gate.quotas.accounts() if self._gate is not None and self._task is not None else ()

    def changed(self) -> Iterable[tuple[Entity, Account]]:
        """Those that have been appended to since sharing has taken note of them."""
        return self._gate.quotas.changed() if self._gate is not None and self._task is not None else ()

    def counterpart(self, kind: str, name: Tags | str, now: float) -> Account | None:
        """The meters of a topic that was appended to through another gateway."""
        if self._gate is None or self._task is None:
            return None
        return self._gate.quotas.counterpart(kind, name, now)

    def _quotas(self) -> TopicQuotas:
        assert self._gate is not None  # noqa: S101 -- nothing is rejected without it
        return self._gate.quotas

    def _hurry(self) -> None:
        if self._watch is not None:
            self._watch.hurry()


def topic_settings(config: QuotasConfig) -> TopicSettings | None:
    """The topic quotas of a config file as the arithmetic takes them."""
    if config.topics is None:
        return None
    return TopicSettings(
        total=float(config.topics.total),
        explicit={name: float(threshold) for name, threshold in config.topics.explicit.items()},
        meter=config.topics.meter,
        window=Window(config.window.samples, float(config.window.seconds)),
        enforce=config.enforce,
    )
