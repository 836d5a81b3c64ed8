"""The parts of one gateway: the parts that all others share, and the features."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from gateway import clock
from gateway.alter_queue import AlterQueue
from gateway.cluster.brokers import Brokers
from gateway.cluster.metadata import ClusterMetadata
from gateway.cluster.upstream import Upstream
from gateway.config.effective import EffectiveConfig
from gateway.config.model import WeirConfig
from gateway.config.topic_keys import own_topics
from gateway.feature import Feature
from gateway.features.catalogue import FEATURES
from gateway.features.client_quotas.feature import ClientQuotas, quota_settings
from gateway.features.connection_quotas.config import connection_limits
from gateway.features.connection_quotas.feature import ConnectionQuotasFeature
from gateway.features.connection_quotas.rules import ConnectionLimits
from gateway.features.controller_mutations.feature import ControllerMutations
from gateway.features.groups.feature import Groups
from gateway.features.ledger.feature import Ledger
from gateway.features.ledger.ledger_topic import ledger_topic
from gateway.features.ledger.shadow_sampler import ShadowSampler
from gateway.features.ledger.usage_sampler import UsageSampler
from gateway.features.notify.feature import LOOK_SECONDS, Notify
from gateway.features.quota_api.feature import QuotaApi
from gateway.features.quota_api.state_file import StateFile
from gateway.features.recent_use.feature import RecentUsage
from gateway.features.sharing.feature import Sharing
from gateway.features.topic_quotas.config import TopicsSection
from gateway.features.topic_quotas.feature import TopicQuotasFeature
from gateway.features.volume_quotas.feature import VolumeQuotas
from gateway.observer import Outlet
from gateway.proxy.counters import Counters
from gateway.proxy.handler import HandlerFactory
from gateway.proxy.listeners.port_claims import PortClaims
from gateway.proxy.poller import make_poller
from gateway.proxy.produce_gate import ProduceGate
from gateway.proxy.sessions import Sessions
from gateway.quotas.own_topics import OwnTopics
from gateway.quotas.scope import BROKER
from gateway.quotas.shadows import EngineWithShadows
from gateway.quotas.snapshot import UsageRow
from gateway.state_locks import StateLocks
from gateway.time_slices import in_slices
from gateway.workers.worker import Worker, gateway_name

_log = logging.getLogger("weir.parts")


class SharedParts:
    """Everything that features, listeners and the admin server need alike. `usage` and `shadow_usage` are for the ledger."""

    def __init__(self, path: Path, config: WeirConfig, worker: Worker | None) -> None:
        """Raises ConfigError if the certificates of `upstream.tls` can't be used."""
        self.counters: Final = Counters()
        self.outlet: Final = Outlet(gateway_name(config.ledger, worker), [self.counters])
        self.effective: Final = EffectiveConfig(config, clock.wall(), self.outlet, path.name)
        self.usage: Final = UsageSampler(clock.wall())
        self.shadow_usage: Final = ShadowSampler(clock.wall())
        self.engine: Final = EngineWithShadows(
            quota_settings(config.quotas.at(clock.utc())[0]),
            clock.monotonic(),
            max_buckets=config.quotas.max_entities,
            shared=config.sharing is not None,
            on_forgotten=None if config.ledger is None else self.usage.forgotten,
            on_shadow_forgotten=None if config.ledger is None else self.shadow_usage.forgotten,
        )
        self.own_topics: Final = OwnTopics(own_topics(config), clock.monotonic(), on_change=self.engine.recall)
        self.claims: Final = None if worker is None else PortClaims(worker.claims)
        servers = [(server.host, server.port) for server in config.upstream.bootstrap_servers]
        self.brokers: Final = Brokers(servers, str if self.claims is None else self.claims.agree_on_cluster)
        self.poller: Final = make_poller()
        self.upstream: Final = Upstream(config.upstream, path.parent, self.brokers, self.counters, self.poller)
        self.metadata: Final = ClusterMetadata(
            self.brokers.anyone, self.upstream.client_options, self.own_topics.identify, self.brokers.why_foreign
        )
        self.produce_gate: Final = ProduceGate()
        self.sessions: Final = Sessions(self.counters, self.outlet, max_idle_seconds=config.connections.max_idle_ms / 1000.0)
        # With workers, the supervisor holds the locks.
        self.locks: Final = StateLocks(config.state, path) if worker is None else None


class InstalledFeatures:
    """Iterates over the features. `connections`, `mutations`, `topics` and `ledger` are joined with the proxy by name."""

    def __init__(self, parts: SharedParts, path: Path, config: WeirConfig, worker: Worker | None) -> None:
        engine, outlet, metadata, reconsider = parts.engine, parts.outlet, parts.metadata, parts.sessions.reconsider
        alterations = AlterQueue(config.quota_admins)
        self.ledger: Final = None if config.ledger is None else Ledger(
            config.ledger, outlet.gateway, parts.counters,
            ((parts.usage, engine.buckets), (parts.shadow_usage, engine.shadows.buckets)),
            ledger_topic(config.ledger, outlet.gateway, metadata.connect), engine.group_buckets.rows,
        )  # fmt: skip
        if self.ledger is not None:
            outlet.observe(self.ledger)
        client_quotas = ClientQuotas(config.quotas, engine, outlet, reconsider, beside=parts.effective.places.prepare)
        self.connections: Final = ConnectionQuotasFeature(_connection_limits(config), engine, outlet)
        self.mutations: Final = ControllerMutations(lambda: metadata.versions)
        self.topics: Final = TopicQuotasFeature(_topics_section(config), metadata, outlet, alterations, parts.own_topics)
        volumes = VolumeQuotas(config.quotas.volumes, metadata, engine, parts.produce_gate, outlet, reconsider)
        sharing = None if config.sharing is None else Sharing(
            config.sharing, metadata.connect, engine, (self.connections.quotas, self.topics, engine.shadows),
            (self.connections.quotas, self.topics),
        )  # fmt: skip
        api_quotas = QuotaApi(
            StateFile(config.state.file(path), None if parts.locks is None else parts.locks.quotas),
            None if config.sharing is None else config.sharing.quotas_topic,
            metadata.connect,
            engine,
            alterations,
            outlet,
            writes_copy=lambda: worker is None or (worker.number == 0 and worker.supervised),  # all workers have one file
            groups=lambda: {group.name for group in self._config.quotas.groups},
            on_quotas=self.topics.override,
            applied=reconsider,
        )
        recent_usage = RecentUsage(
            config.state.usage_file(path, None if worker is None else worker.number),
            config.state.usage_interval_ms / 1000.0,
            engine,
            self.connections.quotas,
            self.topics,
            None if sharing is None else sharing.member,
            parts.counters.usage_saves,
            lambda: worker is None or worker.supervised,
        )

        self._config = config
        self._engine = engine
        # With workers, the supervisor sends the notifications.
        notify = None if worker is not None else Notify(
            config.notify, outlet.gateway, self._active_rows, parts.effective.places, path.parent
        )  # fmt: skip

        # Each feature, and the choice of its own section from a config.
        sections: dict[Feature[Any] | None, Callable[[WeirConfig], Any]] = {
            client_quotas: lambda config: config.quotas,
            Groups(engine, reconsider, shared=config.sharing is not None): lambda _: None,
            self.connections: _connection_limits,
            self.mutations: lambda _: None,
            self.topics: _topics_section,
            volumes: lambda config: config.quotas.volumes,
            api_quotas: lambda config: config.quota_admins,
            recent_usage: lambda _: None,
            sharing: lambda config: config.sharing,
            notify: lambda config: config.notify,
            self.ledger: lambda config: config.ledger,
        }
        installed = [feature for feature in sections if feature is not None]
        installed.sort(key=lambda feature: FEATURES.index(type(feature)))
        self._sections: Final = {feature: sections[feature] for feature in installed}

    def __iter__(self) -> Iterator[Feature[Any]]:
        return iter(self._sections)

    def handlers(self) -> dict[int, HandlerFactory]:
        """The request handlers of all features by API key."""
        return {key: factory for feature in self for key, factory in feature.handlers().items()}

    def prepare(self, config: WeirConfig) -> None:
        """Compute the long parts of `apply`, in a thread."""
        for feature, section in self._sections.items():
            feature.prepare(section(config))

    def apply(self, config: WeirConfig) -> list[str]:
        """Put a new config into effect; return notes for the operator."""
        self._config = config
        return [note for feature, section in self._sections.items() for note in feature.apply(section(config))]

    async def _active_rows(self) -> dict[int, list[UsageRow]]:
        """The rows of the only process."""
        return {0: await in_slices(self._engine.active_rows(clock.monotonic(), 2.0 * LOOK_SECONDS))}

    def not_ready(self) -> str | None:
        """The first reason of a feature why clients should not be sent here yet."""
        return next((reason for feature in self if (reason := feature.not_ready()) is not None), None)

    async def stop(self) -> None:
        """Stop each feature, also after the failure of another one: the state of the others would be lost."""
        for feature in self:
            try:
                await feature.stop()
            except Exception:
                _log.exception("feature failed while it stopped: %s", type(feature).__name__)


def _connection_limits(config: WeirConfig) -> ConnectionLimits:
    return connection_limits(config.connections, config.listeners)


def _topics_section(config: WeirConfig) -> TopicsSection:
    quotas = config.quotas
    return TopicsSection(quotas.topics, quotas.window, quotas.enforce, by_broker=quotas.scope == BROKER)
