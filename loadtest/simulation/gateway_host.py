"""A machine that runs one gateway: its config file, its starts, kills and reloads."""

import asyncio
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.app import Gateway
from gateway.drain import Stopping
from gateway.features.topic_quotas.thresholds import KEY, TOTAL
from gateway.proxy.connection import Session
from gateway.quotas.entity import ANONYMOUS
from loadtest.simulation.balancer import HEADER_SECONDS, NETWORK
from loadtest.simulation.brokers import FIRST_BROKER_PORT, PORT, Cluster
from loadtest.simulation.kafka_messages import CLIENT_IDS
from loadtest.simulation.network import Network
from loadtest.simulation.plan import Plan, Settings
from loadtest.simulation.surroundings import parsed
from loadtest.simulation.topic_messages import SMALL_TOPIC
from loadtest.simulation.transports import SimulatedTransport
from loadtest.simulation.upstream_tap import Forwarded, UpstreamTap
from loadtest.simulation.virtual_loop import Process, VirtualLoop

STOP_SECONDS = 15.0
"""The time after `drain_seconds` in which a gateway must have ended."""

GUARANTEES = {"jobs": (("job-1", "job-2"), 0.2, 3), "rest": (("etl",), 0.6, 1)}
"""The groups that share a capacity: their members, their guarantees as a part of the capacity, and their weights."""


@dataclass(slots=True)
class Incarnation:
    """One process of a gateway, from its start to its end."""

    process: Process
    gateway: Gateway
    stopping: Stopping
    drain_seconds: float
    totals: Forwarded = field(default_factory=Forwarded)
    taps: list[UpstreamTap] = field(default_factory=list)
    forgotten: list[Any] = field(default_factory=list)  # buckets that the engine has dropped
    task: asyncio.Task[None] | None = None
    terminated_at: float | None = None
    ended_at: float | None = None
    killed: bool = False

    def out_of_time(self, now: float) -> bool:
        """True if it was killed, or the time of its drain is over: then it cuts its connections."""
        return self.killed or (self.terminated_at is not None and now > self.terminated_at + self.drain_seconds)

    @property
    def parts(self) -> Any:
        return self.gateway._parts

    def buckets(self, kind: str) -> list[Any]:
        """All buckets of clients that have ever been, without those of groups."""
        every = [*self.parts.engine.buckets(), *self.forgotten]
        return [bucket for bucket in every if bucket.kind.name == kind and bucket.resolution.tags.group is None]


class GatewayHost:
    """`incarnations` has every process that has run here, the last one at the end."""

    def __init__(self, index: int, plan: Plan, loop: VirtualLoop, network: Network, cluster: Cluster, directory: Path) -> None:
        self.name = f"gw-{index + 1}"
        self.host = f"10.1.0.{index + 1}"
        self.incarnations: list[Incarnation] = []
        self._plan = plan
        self._loop = loop
        self._network = network
        self._cluster = cluster
        self._path = directory / f"{self.name}.yaml"
        self.settings = plan.settings[0]
        self.write_config(self.settings)

    @property
    def running(self) -> Incarnation | None:
        last = self.incarnations[-1] if self.incarnations else None
        return last if last is not None and last.ended_at is None and not last.killed else None

    def write_config(self, settings: Settings | None) -> None:
        """None writes a file with a mistake."""
        text = "quotas: nonsense" if settings is None else config_text(self._plan, settings, self.host)
        self._path.write_text(text)
        if settings is not None:
            self.settings = settings

    def start(self) -> None:
        process = Process(self.name, self.host)
        process.run(self._start, process)

    def _start(self, process: Process) -> None:
        config = parsed(config_text(self._plan, self.settings, self.host))
        gateway = Gateway(self._path, config)
        incarnation = Incarnation(process, gateway, Stopping(), self._plan.drain_seconds)
        gateway._parts.engine._on_forgotten = incarnation.forgotten.append
        self.incarnations.append(incarnation)
        incarnation.task = self._loop.create_task(self._run(incarnation))
        self._network.say(f"{self.name} starts")

    async def _run(self, incarnation: Incarnation) -> None:
        await incarnation.gateway.start()
        await incarnation.gateway.run(incarnation.stopping)
        incarnation.ended_at = self._loop.time()
        self._network.end_process(incarnation.process)
        self._network.say(f"{self.name} has ended")

    def terminate(self) -> None:
        """SIGTERM."""
        running = self.running
        if running is not None and running.terminated_at is None:
            running.terminated_at = self._loop.time()
            running.process.run(running.stopping.request)
            self._network.say(f"{self.name} gets SIGTERM")

    def kill(self) -> None:
        """SIGKILL. The kernel closes the sockets and frees the locks."""
        running = self.running
        if running is None:
            return
        running.killed = True
        running.process.alive = False
        self._network.end_process(running.process)
        if running.parts.locks is not None:
            running.parts.locks.release()
        self._network.say(f"{self.name} is killed")

    def reload(self, settings: Settings | None, *, hangup: bool) -> None:
        """Write a config, and let the gateway find it at once, by SIGHUP or by the file's change."""
        self.write_config(settings)
        running = self.running
        if running is None:
            return
        handler = running.process.signal_handlers.get(signal.SIGHUP)
        if hangup and handler is not None:
            running.process.run(handler)
        else:
            running.process.run(running.process.config_changed.set)
        self._network.say(f"{self.name} reloads {settings}")

    def watch_dial(self, session: Session) -> UpstreamTap:
        """Called when a session begins to connect to its broker."""
        incarnation = self.incarnations[-1]
        gate = incarnation.parts.produce_gate
        tap = UpstreamTap(incarnation.totals, self._cluster, session, lambda: gate.paused)
        incarnation.taps.append(tap)
        return tap

    def sessions(self) -> list[Session]:
        running = self.running
        return [] if running is None else list(running.parts.sessions)


def transport_of(session: Session) -> SimulatedTransport | None:
    """The transport of a session's client."""
    transport = session._client
    assert transport is None or isinstance(transport, SimulatedTransport)
    return transport


def config_text(plan: Plan, settings: Settings, host: str) -> str:
    """The config file, as YAML."""
    limits = f"producer_byte_rate: {settings.limit}, consumer_byte_rate: {settings.fetch_limit}"
    if settings.mutation_rate is not None:
        limits += f", controller_mutation_rate: {settings.mutation_rate}"
    if settings.request_rate is not None:
        limits += f", request_rate: {settings.request_rate}"
    if settings.shadow is not None:
        limits += f", shadow: {{producer_byte_rate: {settings.shadow}, consumer_byte_rate: {settings.shadow}}}"
    users = sorted({f"user: {client.user}" for client in plan.clients if client.user})
    entities = users or [f"client-id: {client_id}" for client_id in CLIENT_IDS]
    headers = f"mode: required, trusted: [{NETWORK}], header_seconds: {HEADER_SECONDS}"
    proxied = f", proxy_protocol: {{{headers}}}" if any(client.header for client in plan.clients) else ""
    lines = [
        "listeners:",
        f"  - {{host: {host}, bootstrap_port: {PORT}, broker_ports: {FIRST_BROKER_PORT}-{FIRST_BROKER_PORT + 20}{proxied}}}",
        f"upstream: {{bootstrap_servers: [{', '.join(f'broker-{node}:{PORT}' for node in range(1, plan.brokers + 1))}]}}",
        f"connections: {{drain_seconds: {plan.drain_seconds}}}",
        f"quota_admins: [{', '.join(f'User:{user or ANONYMOUS}' for user in sorted({each.user for each in plan.clients}))}]",
        "quotas:",
        f"  enforce: {str(settings.enforce).lower()}",
        f"  scope: {'broker' if settings.by_broker else 'cluster'}",
        f"  algorithm: {'window' if settings.window else 'token_bucket'}",
        f"  window: {{samples: {settings.samples}, seconds: 1}}",
        "  entities:",
        *(f"    - {{{entity}, {limits}}}" for entity in entities),
    ]
    if settings.capacity is not None:
        lines += ["  groups:", f"    - {{name: all, producer_byte_rate: {settings.capacity}}}"]
        for group, (members, part, weight) in GUARANTEES.items():
            rate = f"{{guarantee: {int(settings.capacity * part)}, weight: {weight}}}"
            rules = ", ".join(f"{{client-id: {member}}}" for member in members)
            lines.append(f"    - {{name: {group}, parent: all, match: [{rules}], producer_byte_rate: {rate}}}")
    elif settings.group_limit is not None:
        lines.append("  groups:")
        lines.append(f'    - {{name: jobs, match: [{{client-id: "job-*"}}], producer_byte_rate: {settings.group_limit}}}')
    if settings.topics is not None:
        thresholds = f"{TOTAL}: {settings.topics}, {KEY}: {{{SMALL_TOPIC}: {settings.topics // 4}}}"
        lines.append(f"  topics: {{{thresholds}, meter: window}}")
    if settings.volumes:
        lines.append("  volumes: {source: topic, freshness_seconds: 5, publish_interval_ms: 1000, max_delay_ms: 500}")
    if plan.sharing:
        unreachable = "fair_share" if plan.fair_share else "local"
        lines.append(f"sharing: {{interval_ms: {plan.interval_ms}, when_unreachable: {unreachable}}}")
    return "\n".join(lines) + "\n"
