"""The composition root: builds a gateway from a config, runs it, reloads it, drains it."""

import asyncio
import gc
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from gateway import clock, heap, open_files, service_manager
from gateway.admin.server import AdminServer
from gateway.admin.view import AdminView
from gateway.background import BackgroundTasks
from gateway.binding import BindError
from gateway.cluster.discovery import Discovery
from gateway.config.certificates import date_warnings, file_problem, first_expiries
from gateway.config.effective import ConfigHistory
from gateway.config.model import WeirConfig
from gateway.config.reload import Reloader
from gateway.config.topic_keys import own_topics
from gateway.drain import END_SECONDS, GRACE_SECONDS, Drain, Stopping
from gateway.features.controller_mutations.costs import BROKER_CONFIGS
from gateway.features.recent_use.worker_files import give_newest_save
from gateway.overdue import EndWithin, no_deadline
from gateway.parts import InstalledFeatures, SharedParts
from gateway.proxy.collected import CollectBudget
from gateway.proxy.context import SessionContext
from gateway.proxy.listeners.listener import Listener
from gateway.proxy.tls.contexts import LiveContext, follow_files
from gateway.quotas.debts import ClearedDebt, DebtFilter, clear_debts
from gateway.time_slices import in_slices
from gateway.version import weir_build
from gateway.workers.worker import CUT, Worker
from protocol.bodies.addresses import Translate

OK, CANNOT_BIND = 0, 3

TICK_SECONDS = 1.0
GC_THRESHOLD = 10_000
"""Sessions make a tuple for each request and drop it in order: there is little for the collector to find."""

GC_MIDDLE_THRESHOLD, GC_OLD_THRESHOLD = 1, 500
"""A collection of the middle generation looks at all objects of two young ones at most, and no client is served meanwhile.

With ten times as many, a reload of 41 000 rows stopped the event loop for 0.15 s of CPU time, again and again. The old
generation is collected as seldom as before.
"""

SWITCH_SECONDS = 0.0001
"""A thread that formats a page or reads a file keeps the interpreter's lock this long while the event loop waits for it.

With Python's default of 5 ms, each scrape would show in the slowest thousandth of the requests.
"""

_log = logging.getLogger("weir.app")


async def serve(
    path: Path,
    config: WeirConfig,
    worker: Worker | None = None,
    history: ConfigHistory | None = None,
    end_within: EndWithin = no_deadline,
) -> int:
    """Run the gateway until SIGTERM or SIGINT; return the exit code. A second signal (a worker's is `CUT`) cuts the drain.

    `path` is watched for changes of the config. `worker` and `history` are given to each of several processes.
    """
    heap.tune()
    gateway = Gateway(path, config, worker, history)
    loop = asyncio.get_running_loop()
    stopping = Stopping(end_within)
    # Before the start: it serves clients, and the default action of a signal would end the process without a drain.
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stopping.request if worker is None else stopping.drain)
    if worker is not None:
        loop.add_signal_handler(CUT, stopping.cut)
    open_files.raise_limit()
    try:
        await gateway.start()
    except BindError as error:
        _log.error("%s", error)
        await gateway.stop()
        return CANNOT_BIND
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, GC_MIDDLE_THRESHOLD, GC_OLD_THRESHOLD)
    sys.setswitchinterval(SWITCH_SECONDS)
    if worker is not None:
        worker.when_alone(stopping.drain)
    await gateway.run(stopping)
    return OK


class Gateway:
    """One process: the shared parts, the features, the clients' connections, and the admin server."""

    def __init__(
        self, path: Path, config: WeirConfig, worker: Worker | None = None, history: ConfigHistory | None = None
    ) -> None:
        self._parts = parts = SharedParts(path, config, worker)
        self._features = features = InstalledFeatures(parts, path, config, worker)
        self._path = path
        self._tasks = BackgroundTasks(parts.counters.task_restarts)
        self._effective = parts.effective
        if history is not None:
            self._effective.go_on_from(history)
        self._reloader = Reloader(path, config, self._apply, self._effective.record, prepare=self._prepare)

        self._handlers, self._collect_budget = features.handlers(), CollectBudget()
        self._admission = features.connections.admission
        self._listeners = [
            Listener(
                listener,
                path.parent,
                parts.upstream,
                parts.counters,
                parts.sessions,
                self._admission,
                self._session_context,
                parts.claims,
            )
            for listener in config.listeners
        ]
        contexts = [parts.upstream.live, *(listener.live for listener in self._listeners)]
        self._certificates = [live for live in contexts if live is not None]
        for live in self._certificates:
            self._note_expiries(live)
        self._drain = Drain(parts.sessions, self._listeners, lambda: self._effective.config.connections)
        learn = features.mutations.known_topics.learn_defaults
        self._discovery = Discovery(parts.upstream, parts.metadata, self._require_sasl, BROKER_CONFIGS, learn)
        view = AdminView(
            parts.engine,
            parts.counters,
            self._effective,
            self._not_ready,
            list(features),
            brokers=parts.brokers.addresses,
            forgive=self._forgive,
            dynamic=lambda: parts.engine.settings.dynamic,
            sessions=lambda: parts.sessions,
        )
        self._admin = AdminServer(view, (config.admin.host, config.admin.port) if worker is None else worker.admin_socket)

    def _session_context(self, translate: Translate) -> SessionContext:
        """The surroundings of a listener's sessions; `translate` gives the addresses of brokers that its clients see."""
        parts, ledger = self._parts, self._features.ledger
        return SessionContext(
            parts.engine,
            parts.counters,
            translate,
            self._effective.config.connections.max_frame_bytes,
            self._handlers,
            parts.produce_gate,
            None if ledger is None else ledger.folds,
            topics=self._features.topics.produced,
            collect_budget=self._collect_budget,
            own_topics=parts.own_topics,
            outlet=parts.outlet,
        )

    def _note_expiries(self, live: LiveContext[Any]) -> None:
        known, found = self._parts.counters.certificate_expiries, first_expiries(live.certificates)
        for key in live.certificates:
            if key in found:
                known[f"{live.name}.{key}"] = found[key]
            else:  # the old time would be that of another certificate
                known.pop(f"{live.name}.{key}", None)

    def _loaded(self, live: LiveContext[Any]) -> None:
        """Note the expiries of new files, and warn as at the start."""
        self._note_expiries(live)
        for warning in date_warnings(live.name, live.certificates, clock.wall()):
            _log.warning("%s", warning)

    async def start(self) -> None:
        """Bind every address. Raises BindError or ConfigError.

        The last is for quotas of the API that can't be read, and for a state file that another gateway uses.
        """
        if self._parts.locks is not None:
            await self._parts.locks.take()
            single = self._effective.config.state.usage_file(self._path)
            await give_newest_save(single, [single])
        for feature in self._features:
            await feature.restore()
        await self._admin.start()
        for listener in self._listeners:
            await listener.start()
        listeners = [listener.name for listener in self._effective.config.listeners]
        _log.info("serving", extra={"listeners": listeners, "open_files": open_files.limit(), "build": weir_build()})

    async def run(self, stopping: Stopping) -> None:
        """Serve until `stopping`, then drain and stop."""
        async with self._tasks:
            tasks = [
                self._tasks.start("discover brokers", self._discovery.run),
                self._tasks.start("reload the config", self._reloader.run),
                self._tasks.start("tick", self._tick),
                self._tasks.start("give memory back", heap.give_back),
                self._tasks.start(
                    "follow certificate files", lambda: follow_files(self._certificates, self._loaded, file_problem)
                ),
            ]
            for feature in self._features:
                feature.start(self._tasks)
            await asyncio.sleep(0)  # each task takes its first step: from now on SIGHUP reloads
            service_manager.ready()
            await stopping.requested.wait()
            connections = self._effective.config.connections
            seconds = connections.drain_delay_seconds + connections.drain_seconds
            service_manager.stopping(seconds + GRACE_SECONDS)
            stopping.end_within(seconds + END_SECONDS)
            await self._drain.run(stopping.at_once)
            stopping.end_within(END_SECONDS)
            self._cut()  # before the features stop, so that clients use nothing that no feature would save or report
            for task in tasks:
                task.cancel()
            await self._features.stop()
        await self.stop()

    async def stop(self) -> None:
        """Close whatever is open."""
        self._cut()
        await self._admin.stop()
        self._parts.upstream.kept.close()
        if self._parts.poller is not None:
            self._parts.poller.close()
        if self._parts.locks is not None:
            self._parts.locks.release()

    def _cut(self) -> None:
        """Close all listeners and connections."""
        for listener in self._listeners:
            listener.close()
        self._admission.close()
        for session in self._parts.sessions:
            session.abort()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = clock.monotonic()
            await in_slices(self._parts.engine.tick_in_steps(now))
            if self._parts.engine.overflowed:
                await in_slices(self._parts.sessions.find_room())
            self._parts.sessions.close_idle(now)
            self._parts.upstream.tick(now)
            self._forget_brokers()
            for listener in self._listeners:
                listener.tick()
            for feature in self._features:
                await in_slices(feature.tick(now))

    def _forget_brokers(self) -> None:
        """Forget brokers that have gone, once no client is connected to their ports."""
        brokers = self._parts.brokers
        if due := brokers.due():
            used = self._parts.sessions.node_ids()
            for node_id in due:
                if node_id not in used:
                    brokers.forget(node_id)

    def _prepare(self, config: WeirConfig) -> None:
        """Compute what the change to a config needs, in a thread."""
        self._features.prepare(config)
        self._effective.places.prepare(config)

    def _apply(self, old: WeirConfig, new: WeirConfig) -> list[str]:
        """Put a new config into effect, on open connections as well; return notes for the operator."""
        self._parts.own_topics.rename(own_topics(new))
        notes = self._features.apply(new)
        self._parts.sessions.max_idle_seconds = new.connections.max_idle_ms / 1000.0
        if new.connections.max_frame_bytes != old.connections.max_frame_bytes:
            for listener in self._listeners:
                listener.limit_frames(new.connections.max_frame_bytes)
            notes.append("connections.max_frame_bytes holds for connections from now on")
        return notes

    def _forgive(self, wanted: DebtFilter) -> list[ClearedDebt]:
        """Clear debts, and unmute the clients that were muted for them."""
        covered, cleared = clear_debts(self._parts.engine.buckets(), wanted, clock.monotonic())
        for session in self._parts.sessions:
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
        unusable = [listener.unusable for listener in self._listeners if listener.unusable is not None]
        return unusable[0] if unusable else self._features.not_ready()
