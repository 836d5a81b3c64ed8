"""The composition root: builds a gateway from a config, runs it, reloads it, drains it."""

import asyncio
import gc
import logging
import resource
import signal
import socket
from dataclasses import replace
from math import inf
from pathlib import Path

from gateway import clock
from gateway.admin.server import AdminBindError, AdminServer
from gateway.admin.view import AdminView
from gateway.background import BackgroundTask, BackgroundTasks
from gateway.cluster.brokers import Brokers
from gateway.cluster.client import OwnClient
from gateway.cluster.defaults import TopicDefaults
from gateway.cluster.discovery import Discovery
from gateway.cluster.upstream import Upstream
from gateway.config.effective import EffectiveConfig
from gateway.config.model import QuotasConfig, WeirConfig
from gateway.config.own_topics import own_topics
from gateway.config.reload import Reloader
from gateway.config.window import WindowConfig
from gateway.drain import Drain, Stopping
from gateway.features.connection_quotas.admission import Admission
from gateway.features.connection_quotas.config import connection_limits
from gateway.features.connection_quotas.rules import ConnectionQuotas
from gateway.features.controller_mutations import handlers as mutations
from gateway.features.controller_mutations.known_topics import KnownTopics
from gateway.features.ledger.feature import Ledger
from gateway.features.ledger.ledger_topic import LedgerTopic, ledger_topic
from gateway.features.ledger.usage import UsageSampler
from gateway.features.quota_api import handlers as client_quotas
from gateway.features.quota_api.alter_queue import AlterQueue
from gateway.features.quota_api.feature import ApiQuotas, overruled
from gateway.features.recent_use.feature import RecentUsage
from gateway.features.sharing.feature import Sharing
from gateway.features.sharing.report import SharingReport
from gateway.features.topic_quotas import handlers as topic_configs
from gateway.features.topic_quotas.feature import TopicQuotasAtWork
from gateway.features.volume_quotas.feature import VolumeWatch
from gateway.features.volume_quotas.report import VolumesReport
from gateway.files.file_lock import StateLocks
from gateway.observer import Outlet
from gateway.proxy.collected import CollectBudget
from gateway.proxy.context import SessionContext
from gateway.proxy.counters import Counters
from gateway.proxy.handler import Opener
from gateway.proxy.listeners.listener import BindError, Listener
from gateway.proxy.listeners.port_claims import PortClaims
from gateway.proxy.produce_gate import ProduceGate
from gateway.proxy.sessions import Sessions
from gateway.proxy.tls.contexts import follow_files
from gateway.quotas.debts import ClearedDebt, DebtFilter, clear_debts
from gateway.quotas.engine import Metering, QuotaEngine, QuotaSettings
from gateway.quotas.kinds.controller_mutation import KIND as CONTROLLER_MUTATIONS
from gateway.quotas.meter import Window
from gateway.quotas.own_topics import OwnTopics
from gateway.workers.worker import CUT, Worker, ledger_of
from protocol.bodies.addresses import Translate

OK, CANNOT_BIND = 0, 3

TICK_SECONDS = 1.0
GC_THRESHOLD = 10_000
"""Sessions make a tuple for each request and drop it in order: there is little for the collector to find."""

OPEN_FILES = 1 << 20

_log = logging.getLogger("weir.app")


async def serve(path: Path, config: WeirConfig, worker: Worker | None = None) -> int:
    """Run the gateway until SIGTERM or SIGINT, the second of which ends it at once (of a worker: `CUT`); returns the exit code.

    `path` is watched for changes of the config; `worker` is given where it is one of several processes.
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
        loop.add_signal_handler(signal_number, stopping.ask if worker is None else stopping.drain)
    if worker is not None:
        loop.add_signal_handler(CUT, stopping.cut)
        worker.when_alone(stopping.drain)
    await gateway.run(stopping)
    return OK


class Gateway:
    """Everything that one process consists of."""

    def __init__(self, path: Path, config: WeirConfig, worker: Worker | None = None) -> None:
        self._config = config
        self._counters = counters = Counters()
        self._tasks = BackgroundTasks(self._counters.task_restarts)
        usage = UsageSampler(clock.wall())
        self._engine = QuotaEngine(
            quota_settings(config.quotas),
            clock.monotonic(),
            max_buckets=config.quotas.max_entities,
            shared=config.sharing is not None,
            on_forgotten=None if config.ledger is None else usage.forgotten,
        )
        self._own_topics = OwnTopics(own_topics(config), clock.monotonic(), on_change=self._engine.recall)
        self._brokers = Brokers([(server.host, server.port) for server in config.upstream.bootstrap_servers])
        directory, reloads = path.parent, self._counters.certificate_reloads
        self._upstream = upstream = Upstream(config.upstream, directory, self._brokers, reloads)
        gateway = socket.gethostname()
        self._ledger: Ledger | None = None
        self._ledger_topic: LedgerTopic | None = None
        if config.ledger is not None:
            section = ledger_of(config.ledger, worker)
            gateway = section.gateway or gateway
            self._ledger_topic = ledger_topic(section, gateway, self._own_client)
            self._ledger = Ledger(section, gateway, counters, usage, self._engine.buckets, self._ledger_topic)
        self._outlet = outlet = Outlet(gateway, [counters] if self._ledger is None else [counters, self._ledger])
        self._sessions = Sessions(counters, outlet, max_idle_seconds=config.connections.max_idle_ms / 1000.0)
        self._connections = ConnectionQuotas(
            self._engine, connection_limits(config.connections, config.listeners), clock.monotonic()
        )
        self._usage = RecentUsage(
            config.state.usage_file(path, None if worker is None else worker.number),
            config.state.usage_interval_ms / 1000.0,
            self._engine,
            self._connections,
            self._counters.usage_saves,
        )
        self._admission = Admission(self._connections, outlet)
        known_topics = KnownTopics()
        self._discovery = Discovery(upstream, TopicDefaults(known_topics.learn_default), self._require_sasl)
        self._locks = None if worker is not None else StateLocks(config.state, path)  # the supervisor has them for workers
        lock = None if self._locks is None else self._locks.quotas
        self._alterations = AlterQueue(config.quota_admins)
        self._topics = TopicQuotasAtWork(self._own_client, outlet, self._alterations, self._own_topics)
        self._api_quotas = ApiQuotas(
            config,
            path,
            self._own_client,
            self._engine,
            self._alterations,
            outlet,
            self._topics.override,
            self._reconsider,
            worker,
            lock,
        )
        self._quota_admin = self._api_quotas.admin
        self._openers: dict[int, Opener] = {
            **client_quotas.openers(self._quota_admin),
            **mutations.openers(known_topics),
            **topic_configs.openers(self._topics.thresholds),
        }
        self._gate = ProduceGate()
        self._collect_budget = CollectBudget()
        self._usage.topics = lambda: self._topics.quotas
        self._sharing: Sharing | None = None
        if config.sharing is not None:
            self._sharing = Sharing(config.sharing, self._own_client, self._engine, (self._connections, self._topics))
            self._usage.member = self._sharing.member
        self._volumes: VolumeWatch | None = None
        self._volumes_task: BackgroundTask | None = None
        claims = None if worker is None else PortClaims(worker.ports_directory)
        self._listeners = [
            Listener(
                listener, directory, upstream, self._counters, self._sessions, self._admission, self._session_context, claims
            )
            for listener in config.listeners
        ]
        contexts = [upstream.live, *(listener.live for listener in self._listeners)]
        self._certificates = [live for live in contexts if live is not None]
        self._effective = EffectiveConfig(config, clock.wall(), outlet)
        self._reloader = Reloader(path, config, self._apply, self._effective.record)
        view = AdminView(
            self._engine,
            self._admission,
            self._counters,
            self._effective,
            self._not_ready,
            volumes=self._volumes_report,
            brokers=self._brokers.addresses,
            topics=self._topics.report,
            sharing=self._sharing_report,
            quota_log=self._api_quotas.report,
            forgive=self._forgive,
            ledger_topic_connected=lambda: None if self._ledger_topic is None else self._ledger_topic.connected,
        )
        self._admin = AdminServer(view, (config.admin.host, config.admin.port) if worker is None else worker.admin_socket)
        self._drain = Drain(self._sessions, self._listeners, lambda: self._effective.config.connections)

    async def start(self) -> None:
        """Bind every address. Raises BindError, AdminBindError, or ConfigError.

        The last is for quotas of the API that can't be read, and for a state file that another gateway uses.
        """
        if self._locks is not None:
            await self._locks.take()
        await self._quota_admin.start()
        await self._usage.restore()
        await self._admin.start()
        for listener in self._listeners:
            await listener.start()
        files = _allow_open_files()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 50)
        _log.info("serving", extra={"listeners": [listener.name for listener in self._config.listeners], "open_files": files})

    async def run(self, stopping: Stopping) -> None:
        """Serve until it is asked to stop, then drain and stop."""
        async with self._tasks:
            start = self._tasks.start
            tasks = [
                start("discover brokers", self._discovery.run),
                start("reload the config", self._reloader.run),
                start("quotas of the API", self._api_quotas.run),
                start("tick", self._tick),
                start("save recent usage", self._usage.run),
                start("follow certificate files", lambda: follow_files(self._certificates)),
            ]
            self._watch_volumes(self._effective.config.quotas)
            if self._ledger is not None:
                tasks.append(start("write the ledger", self._ledger.run, self._ledger.close))
            if self._ledger_topic is not None:  # after the ledger, whose last lines it gets
                tasks.append(start("publish the ledger", self._ledger_topic.run))
            if self._sharing is not None:
                tasks.append(start("share quotas with other gateways", self._sharing.run))
            self._topics.configure(self._effective.config.quotas, self._tasks)
            self._usage.restore_topics()
            await stopping.asked.wait()
            await self._drain.run(stopping.at_once)
            await self._cut()  # first, so that nobody uses anything of which nobody is told
            if self._sharing is not None:
                await self._sharing.leave()
            self._topics.tick(inf)  # what is folded is told of now
            # They end in this order: what the volumes' watch tells last is still written by the ledger.
            for task in (self._volumes_task, *tasks):
                if task is not None:
                    task.cancel()
            await self._usage.save()
            self._topics.stop()
        await self.stop()

    async def stop(self) -> None:
        """Close whatever is open."""
        await self._cut()
        await self._admin.stop()
        if self._locks is not None:
            self._locks.release()

    async def _cut(self) -> None:
        """Serve nobody any more; who is still connected is cut."""
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
            self._topics.tick(now)

    def _apply(self, old: WeirConfig, new: WeirConfig) -> list[str]:
        """Put a new config into effect, on open connections as well; returns what should be said of that."""
        notes: list[str] = []
        self._own_topics.rename(own_topics(new))
        if new.quotas != old.quotas:
            self._topics.configure(new.quotas, self._tasks)
            notes += self._topics.notes(old.quotas, new.quotas)
            settings = replace(quota_settings(new.quotas), dynamic=self._engine.settings.dynamic)
            self._engine.max_buckets = new.quotas.max_entities
            self._engine.apply(settings, clock.monotonic())
            notes += overruled(old.quotas.entities, new.quotas.entities, settings.dynamic)
            self._reconsider()
            self._watch_volumes(new.quotas)
            self._outlet.file_changed(old.quotas.entities, new.quotas.entities)
        if self._sharing is not None and new.sharing is not None:
            self._sharing.configure(new.sharing)
        if self._ledger is not None and new.ledger is not None:
            self._ledger.reconfigure(new.ledger)
        self._alterations.admins = frozenset(new.quota_admins)
        self._connections.apply(connection_limits(new.connections, new.listeners), clock.monotonic())
        self._sessions.max_idle_seconds = new.connections.max_idle_ms / 1000.0
        if new.connections.max_frame_bytes != old.connections.max_frame_bytes:
            for listener in self._listeners:
                listener.limit_frames(new.connections.max_frame_bytes)
            notes.append("connections.max_frame_bytes holds for connections from now on")
        return notes

    def _session_context(self, translate: Translate) -> SessionContext:
        """What the sessions of a listener, whose clients are told of brokers by `translate`, find around them."""
        return SessionContext(
            self._engine,
            self._counters,
            translate,
            self._config.connections.max_frame_bytes,
            self._openers,
            self._gate,
            None if self._ledger is None else self._ledger.folds,
            topics=self._topics.produced,
            collect_budget=self._collect_budget,
            own_topics=self._own_topics,
            outlet=self._outlet,
        )

    def _watch_volumes(self, config: QuotasConfig) -> None:
        """Begin to watch the cluster's volumes, go on with another configuration, or stop."""
        volumes = config.volumes
        if volumes is not None and self._volumes is not None and self._volumes.reconfigure(volumes):
            return
        before = self._volumes_task
        if before is not None and self._volumes is not None:
            if volumes is not None:
                self._volumes.give_way()
            before.cancel()
        self._volumes = self._volumes_task = None
        if volumes is not None:
            watch = VolumeWatch(volumes, self._own_client, self._engine, self._gate, self._outlet, on_release=self._reconsider)
            ended = None if before is None else before.task
            self._volumes = watch
            self._volumes_task = self._tasks.start("watch the cluster's volumes", lambda: watch.run(ended), watch.end)

    def _volumes_report(self) -> VolumesReport | None:
        return None if self._volumes is None else self._volumes.report()

    def _sharing_report(self) -> SharingReport | None:
        return None if self._sharing is None else self._sharing.report()

    def _own_client(self) -> OwnClient:
        return OwnClient(self._brokers.anyone, self._upstream.client_options, on_topic=self._own_topics.identify)

    def _forgive(self, wanted: DebtFilter) -> list[ClearedDebt]:
        """Clear debts, and unmute the clients that were muted for them."""
        covered, cleared = clear_debts(self._engine.buckets(), wanted, clock.monotonic())
        for session in self._sessions:
            session.let_go(covered)
        return cleared

    def _reconsider(self) -> None:
        """Whoever may go on by now does."""
        for session in self._sessions:
            session.reconsider()

    def _require_sasl(self, wanted: bool | None) -> None:
        for listener in self._listeners:
            listener.require_sasl(wanted=wanted)

    def _not_ready(self) -> str | None:
        if self._drain.active:
            return "draining"
        return self._api_quotas.not_ready() if self._discovery.reached_once else self._discovery.problem


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


def quota_settings(config: QuotasConfig) -> QuotaSettings:
    """The quotas of a config file as the engine takes them."""
    return QuotaSettings(
        quotas=config.entities,
        enforce=config.enforce,
        algorithm=config.algorithm,
        window=_window(config.window),
        metering={
            CONTROLLER_MUTATIONS.name: Metering(config.mutations.algorithm, _window(config.mutations.window or config.window))
        },
    )


def _window(config: WindowConfig) -> Window:
    return Window(config.samples, float(config.seconds))
