"""The composition root: builds a gateway from a config, runs it, reloads it, drains it."""

import asyncio
import gc
import logging
import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gateway import clock
from gateway.admin.server import AdminBindError, AdminServer
from gateway.admin.view import AdminView
from gateway.alter_queue import AlterQueue
from gateway.background import BackgroundTasks
from gateway.cluster.brokers import Brokers
from gateway.cluster.discovery import Discovery
from gateway.cluster.metadata import ClusterMetadata
from gateway.cluster.upstream import Upstream
from gateway.config.effective import EffectiveConfig
from gateway.config.model import WeirConfig
from gateway.config.own_topics import own_topics
from gateway.config.reload import Reloader
from gateway.drain import Drain, Stopping
from gateway.feature import Feature
from gateway.features.catalogue import FEATURES
from gateway.features.client_quotas.feature import ClientQuotas, quota_settings
from gateway.features.connection_quotas.config import connection_limits
from gateway.features.connection_quotas.feature import ConnectionQuotasFeature
from gateway.features.connection_quotas.rules import ConnectionLimits
from gateway.features.controller_mutations.feature import ControllerMutations
from gateway.features.ledger.feature import Ledger
from gateway.features.ledger.ledger_topic import ledger_topic
from gateway.features.ledger.usage import UsageSampler
from gateway.features.quota_api.feature import QuotaApi
from gateway.features.quota_api.state_file import StateFile
from gateway.features.recent_use.feature import RecentUsage
from gateway.features.sharing.feature import Sharing
from gateway.features.topic_quotas.config import TopicsSection
from gateway.features.topic_quotas.feature import TopicLimiter
from gateway.features.volume_quotas.feature import VolumeQuotas
from gateway.files.file_lock import StateLocks
from gateway.observer import Outlet
from gateway.proxy.collected import CollectBudget
from gateway.proxy.context import SessionContext
from gateway.proxy.counters import Counters
from gateway.proxy.handler import HandlerFactory
from gateway.proxy.listeners.listener import BindError, Listener
from gateway.proxy.listeners.port_claims import PortClaims
from gateway.proxy.produce_gate import ProduceGate
from gateway.proxy.sessions import Sessions
from gateway.proxy.tls.contexts import follow_files
from gateway.quotas.debts import ClearedDebt, DebtFilter, clear_debts
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.own_topics import OwnTopics
from gateway.version import weir_build
from gateway.workers.worker import CUT, Worker, ledger_of
from protocol.bodies.addresses import Translate

OK, CANNOT_BIND = 0, 3

TICK_SECONDS = 1.0
GC_THRESHOLD = 10_000
"""Sessions make a tuple for each request and drop it in order: there is little for the collector to find."""

OPEN_FILES = 1 << 20

_log = logging.getLogger("weir.app")


async def serve(path: Path, config: WeirConfig, worker: Worker | None = None) -> int:
    """Run the gateway until SIGTERM or SIGINT; return the exit code. A second signal (a worker's is `CUT`) cuts the drain.

    `path` is watched for changes of the config. `worker` is given to each of several processes.
    """
    gateway = Gateway(path, config, worker)
    try:
        await gateway.start()
    except (BindError, AdminBindError) as error:
        _log.error("%s", error)
        await gateway.stop()
        return CANNOT_BIND
    loop = asyncio.get_running_loop()
    stopping = Stopping()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stopping.request if worker is None else stopping.drain)
    if worker is not None:
        loop.add_signal_handler(CUT, stopping.cut)
        worker.when_alone(stopping.drain)
    await gateway.run(stopping)
    return OK


class _Installed(NamedTuple):
    """A feature, and the choice of its own section from a config."""

    feature: Feature[Any]
    section: Callable[[WeirConfig], Any]


class Gateway:
    """One process: the engine, the features, the clients' connections, and the admin server."""

    def __init__(self, path: Path, config: WeirConfig, worker: Worker | None = None) -> None:
        counters, usage = Counters(), UsageSampler(clock.wall())
        self._tasks = BackgroundTasks(counters.task_restarts)
        self._engine = engine = QuotaEngine(
            quota_settings(config.quotas),
            clock.monotonic(),
            max_buckets=config.quotas.max_entities,
            shared=config.sharing is not None,
            on_forgotten=None if config.ledger is None else usage.forgotten,
        )
        self._own_topics = own = OwnTopics(own_topics(config), clock.monotonic(), on_change=engine.recall)
        brokers = Brokers([(server.host, server.port) for server in config.upstream.bootstrap_servers])
        upstream = Upstream(config.upstream, path.parent, brokers, counters.certificate_reloads)
        metadata = ClusterMetadata(brokers.anyone, upstream.client_options, own.identify)

        # The ledger is built before the parts that report events, as it observes them.
        gateway, ledger = socket.gethostname(), None
        if config.ledger is not None:
            section = ledger_of(config.ledger, worker)
            gateway = section.gateway or gateway
            ledger = Ledger(section, gateway, counters, usage, engine.buckets, ledger_topic(section, gateway, metadata.connect))
        outlet = Outlet(gateway, [counters] if ledger is None else [counters, ledger])

        self._sessions = sessions = Sessions(counters, outlet, max_idle_seconds=config.connections.max_idle_ms / 1000.0)
        self._locks = None if worker is not None else StateLocks(config.state, path)  # the supervisor has them for workers
        gate, alterations = ProduceGate(), AlterQueue(config.quota_admins)
        connection_quotas = ConnectionQuotasFeature(_connection_limits(config), engine, outlet)
        mutations = ControllerMutations()
        topics = TopicLimiter(_topics_section(config), metadata, outlet, alterations, own)
        sharing = None
        if config.sharing is not None:
            sharing = Sharing(config.sharing, metadata.connect, engine, (connection_quotas.quotas, topics))
        api_quotas = QuotaApi(
            StateFile(config.state.file(path), None if self._locks is None else self._locks.quotas),
            None if config.sharing is None else config.sharing.quotas_topic,
            metadata.connect,
            engine,
            alterations,
            outlet,
            writes_copy=worker is None or worker.number == 0,  # all workers have one file
            on_quotas=topics.override,
            applied=sessions.reconsider,
        )
        recent_usage = RecentUsage(
            config.state.usage_file(path, None if worker is None else worker.number),
            config.state.usage_interval_ms / 1000.0,
            engine,
            connection_quotas.quotas,
            topics,
            None if sharing is None else sharing.member,
            counters.usage_saves,
        )
        volumes = VolumeQuotas(config.quotas.volumes, metadata, engine, gate, outlet, sessions.reconsider)
        sections: list[tuple[Feature[Any] | None, Callable[[WeirConfig], Any]]] = [
            (ClientQuotas(config.quotas, engine, outlet, sessions.reconsider), lambda config: config.quotas),
            (connection_quotas, _connection_limits),
            (mutations, lambda _: None),
            (topics, _topics_section),
            (volumes, lambda config: config.quotas.volumes),
            (api_quotas, lambda config: config.quota_admins),
            (recent_usage, lambda _: None),
            (sharing, lambda config: config.sharing),
            (ledger, lambda config: config.ledger),
        ]
        installed = [_Installed(feature, section) for feature, section in sections if feature is not None]
        self._installed = sorted(installed, key=lambda each: FEATURES.index(type(each.feature)))
        self._features = [each.feature for each in self._installed]

        handlers: dict[int, HandlerFactory] = {}
        for feature in self._features:
            handlers |= feature.handlers()
        collect_budget = CollectBudget()

        def session_context(translate: Translate) -> SessionContext:
            """The surroundings of a listener's sessions; `translate` gives the addresses of brokers that its clients see."""
            return SessionContext(
                engine,
                counters,
                translate,
                config.connections.max_frame_bytes,
                handlers,
                gate,
                None if ledger is None else ledger.folds,
                topics=topics.produced,
                collect_budget=collect_budget,
                own_topics=own,
                outlet=outlet,
            )

        self._admission = connection_quotas.admission
        claims = None if worker is None else PortClaims(worker.ports_directory)
        self._listeners = [
            Listener(listener, path.parent, upstream, counters, sessions, connection_quotas.admission, session_context, claims)
            for listener in config.listeners
        ]
        contexts = [upstream.live, *(listener.live for listener in self._listeners)]
        self._certificates = [live for live in contexts if live is not None]
        self._discovery = Discovery(upstream, metadata, self._require_sasl, mutations.known_topics.learn_default)
        self._effective = EffectiveConfig(config, clock.wall(), outlet)
        self._reloader = Reloader(path, config, self._apply, self._effective.record)
        self._drain = Drain(sessions, self._listeners, lambda: self._effective.config.connections)
        view = AdminView(
            engine,
            counters,
            self._effective,
            self._not_ready,
            self._features,
            brokers=brokers.addresses,
            forgive=self._forgive,
        )
        self._admin = AdminServer(view, (config.admin.host, config.admin.port) if worker is None else worker.admin_socket)

    async def start(self) -> None:
        """Bind every address. Raises BindError, AdminBindError, or ConfigError.

        The last is for quotas of the API that can't be read, and for a state file that another gateway uses.
        """
        if self._locks is not None:
            await self._locks.take()
        for feature in self._features:
            await feature.restore()
        await self._admin.start()
        for listener in self._listeners:
            await listener.start()
        files = _allow_open_files()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 50)
        listeners = [listener.name for listener in self._effective.config.listeners]
        _log.info("serving", extra={"listeners": listeners, "open_files": files, "build": weir_build()})

    async def run(self, stopping: Stopping) -> None:
        """Serve until `stopping`, then drain and stop."""
        async with self._tasks:
            tasks = [
                self._tasks.start("discover brokers", self._discovery.run),
                self._tasks.start("reload the config", self._reloader.run),
                self._tasks.start("tick", self._tick),
                self._tasks.start("follow certificate files", lambda: follow_files(self._certificates)),
            ]
            for feature in self._features:
                feature.start(self._tasks)
            await stopping.requested.wait()
            await self._drain.run(stopping.at_once)
            await self._cut()  # before the features stop, so that clients use nothing that no feature would save or report
            for task in tasks:
                task.cancel()
            for feature in self._features:
                await feature.stop()
        await self.stop()

    async def stop(self) -> None:
        """Close whatever is open."""
        await self._cut()
        await self._admin.stop()
        if self._locks is not None:
            self._locks.release()

    async def _cut(self) -> None:
        """Close all listeners and connections."""
        for listener in self._listeners:
            await listener.close()
        self._admission.close()
        for session in self._sessions:
            session.abort()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = clock.monotonic()
            for _ in self._engine.tick_in_parts(now):
                await asyncio.sleep(0)
            self._sessions.close_idle(now)
            for feature in self._features:
                feature.tick(now)

    def _apply(self, old: WeirConfig, new: WeirConfig) -> list[str]:
        """Put a new config into effect, on open connections as well; return notes for the operator."""
        self._own_topics.rename(own_topics(new))
        notes = [note for each in self._installed for note in each.feature.apply(each.section(new))]
        self._sessions.max_idle_seconds = new.connections.max_idle_ms / 1000.0
        if new.connections.max_frame_bytes != old.connections.max_frame_bytes:
            for listener in self._listeners:
                listener.limit_frames(new.connections.max_frame_bytes)
            notes.append("connections.max_frame_bytes holds for connections from now on")
        return notes

    def _forgive(self, wanted: DebtFilter) -> list[ClearedDebt]:
        """Clear debts, and unmute the clients that were muted for them."""
        covered, cleared = clear_debts(self._engine.buckets(), wanted, clock.monotonic())
        for session in self._sessions:
            session.let_go(covered)
        return cleared

    def _require_sasl(self, wanted: bool | None) -> None:
        for listener in self._listeners:
            listener.require_sasl(wanted=wanted)

    def _not_ready(self) -> str | None:
        if self._drain.active:
            return "draining"
        if not self._discovery.reached_once:
            return self._discovery.problem
        return next((reason for feature in self._features if (reason := feature.not_ready()) is not None), None)


def _connection_limits(config: WeirConfig) -> ConnectionLimits:
    return connection_limits(config.connections, config.listeners)


def _topics_section(config: WeirConfig) -> TopicsSection:
    return TopicsSection(config.quotas.topics, config.quotas.window, config.quotas.enforce)


def _allow_open_files() -> int:
    """Raise the limit of open files (a client takes two) as far as it goes, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (max(hard, OPEN_FILES), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        except (ValueError, OSError):  # only root may raise the hard limit, and not beyond fs.nr_open
            continue
        return limit
    return hard
