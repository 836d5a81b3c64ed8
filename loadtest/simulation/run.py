"""One run: gateways, brokers and clients of a plan in one event loop, from the start to the drain."""

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from gateway.proxy.broker_end import BrokerEnd
from gateway.proxy.connection import Session
from loadtest.simulation.brokers import Cluster
from loadtest.simulation.clients import ClientConnection, SimulatedClient
from loadtest.simulation.faults import Faults
from loadtest.simulation.gateway_host import STOP_SECONDS, GatewayHost
from loadtest.simulation.group_invariants import GroupWatch
from loadtest.simulation.invariants import (
    check_charges,
    check_overshoot,
    check_protocol_errors,
    check_sessions,
    check_topics,
    check_unanswered,
    lost_alteration,
    quotas_agree,
)
from loadtest.simulation.kafka_messages import ALTERED
from loadtest.simulation.network import Network, Verdicts, Violation
from loadtest.simulation.own_connections import OwnTopics
from loadtest.simulation.plan import WARM_UP, Plan
from loadtest.simulation.surroundings import surroundings
from loadtest.simulation.transports import Tap
from loadtest.simulation.upstream_tap import UpstreamTap
from loadtest.simulation.virtual_loop import BEGIN, DeadlockError, Process, VirtualLoop, run_in

CHECK_SECONDS = 0.25
PATIENCE_SECONDS = 90.0
"""The time after the last fault in which every request must be answered: longer than any mute by the limits of a plan."""

AGREE_SECONDS = 20.0
"""The time after which all gateways have the same quotas of the quota API."""

_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`transcript` is a hash of every delivery; `log` has the events if they were asked for."""

    violations: tuple[Violation, ...]
    transcript: str
    requests: int
    forwarded: int
    turns: int
    log: list[str] = field(default_factory=list)


class Run:
    """`execute` runs the plan once."""

    def __init__(self, plan: Plan, *, log: bool = False) -> None:
        self._plan = plan
        self._loop = loop = VirtualLoop()
        self._network = loop.network = Network(loop, plan.seed)
        if log:
            self._network.log = []
        self._verdicts = Verdicts(lambda: loop.time() - BEGIN)
        self._cluster = Cluster(self._network, plan.brokers, self._verdicts)
        self._cluster.nobody_waits = plan.settings[0].shadow is not None
        self._own = OwnTopics(self._cluster)
        self._ended = asyncio.Event()
        self._hosts: list[GatewayHost] = []
        self._clients: list[SimulatedClient] = []
        self._taps: dict[str, UpstreamTap] = {}
        self._groups = GroupWatch()

    def execute(self) -> Outcome:
        directory = Path(tempfile.mkdtemp(prefix="weir-simulation-", dir=_MEMORY if _MEMORY.is_dir() else None))
        loop = self._loop
        loop.set_exception_handler(self._on_error)
        self._verdicts.on_first = self._ended.set
        self._network.on_dial = self._on_dial
        try:
            with surroundings(loop, self._network, self._own, self._verdicts, self._plan.seed):
                try:
                    run_in(loop, self._main(directory))
                except DeadlockError:
                    self._verdicts.fail("deadlock", "no timer is set, and nobody can go on")
                finally:
                    outcome = self._outcome()
                    loop.end()
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return outcome

    def _outcome(self) -> Outcome:
        return Outcome(
            tuple(self._verdicts.violations),
            self._network.transcript.hexdigest(),
            len(self._cluster.sent),
            sum(sent.forwarded > 0 for sent in self._cluster.sent.values()),
            self._loop.turns,
            self._network.log or [],
        )

    async def _main(self, directory: Path) -> None:
        plan, loop = self._plan, self._loop
        self._hosts = [
            GatewayHost(index, plan, loop, self._network, self._cluster, directory) for index in range(plan.gateways)
        ]
        addresses = [host.host for host in self._hosts]
        self._clients = [
            SimulatedClient(loop, each, self._cluster, addresses, plan.seed, self._on_end) for each in plan.clients
        ]
        faults = Faults(plan, self._network, self._own, self._hosts, self._clients)
        if any(settings.volumes for settings in plan.settings):
            loop.create_task(faults.report_disks())
        for host in self._hosts:
            host.start()
        loop.create_task(self._watch())
        await self._until(WARM_UP if plan.sharing else 0.5)
        faults.schedule(loop.time())
        for client in self._clients:
            client.start()
        await self._until(plan.seconds)
        faults.heal()
        for client in self._clients:
            client.stopped = True
        await self._wait_for_answers()
        if self._cluster.alterations:
            await self._wait_for_quotas()
        faults.end()
        await self._drain()
        self._final_checks()

    async def _until(self, seconds: float) -> None:
        """Let time pass, unless the run has failed."""
        if self._ended.is_set():
            return
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            pass

    async def _watch(self) -> None:
        while True:
            check_sessions(self._hosts, self._verdicts)
            if self._plan.settings[0].capacity is not None or self._plan.settings[0].request_rate is not None:
                self._groups.look(self._hosts, self._clients, self._loop.time(), self._verdicts)
            await asyncio.sleep(CHECK_SECONDS)

    async def _wait_for_answers(self) -> None:
        patience = PATIENCE_SECONDS + _mutes_by_operators(self._plan)
        deadline = self._loop.time() + patience
        while not all(client.unanswered == 0 for client in self._clients):
            if self._ended.is_set():
                return
            if self._loop.time() > deadline:
                late = [f"client {client.plan.number}: {client.unanswered}" for client in self._clients if client.unanswered]
                self._verdicts.fail("no response", f"requests without a response after {patience:g} s: {late}")
                return
            await self._until(CHECK_SECONDS)

    async def _wait_for_quotas(self) -> None:
        """Gateways without `sharing` have quotas of their own."""
        if self._plan.gateways > 1 and not self._plan.sharing:
            return
        deadline = self._loop.time() + AGREE_SECONDS
        while not self._ended.is_set():
            lost = lost_alteration(self._hosts, self._cluster)
            if not lost and quotas_agree(self._hosts):
                return
            if self._loop.time() > deadline:
                self._verdicts.fail("confirmed quota lost" if lost else "quotas differ", lost or "between the gateways")
                return
            await self._until(CHECK_SECONDS)

    async def _drain(self) -> None:
        for host in self._hosts:
            if host.running is None:
                host.start()  # its last process was still draining
            host.terminate()
        deadline = self._loop.time() + self._plan.drain_seconds + STOP_SECONDS
        while any(host.running is not None for host in self._hosts):
            if self._ended.is_set():
                return
            if self._loop.time() > deadline:
                left = [host.name for host in self._hosts if host.running is not None]
                self._verdicts.fail(
                    "drain does not end", f"{', '.join(left)} after {self._plan.drain_seconds + STOP_SECONDS:g} s"
                )
                return
            await self._until(CHECK_SECONDS)

    def _final_checks(self) -> None:
        if self._verdicts.violations:
            return
        for host in self._hosts:
            for incarnation in host.incarnations:
                check_charges(self._plan, incarnation, host.name, self._verdicts)
                check_topics(self._plan, incarnation, host.name, self._verdicts)
                check_protocol_errors(incarnation, host.name, self._verdicts)
                task = incarnation.task
                if task is not None and task.done() and not incarnation.killed and task.exception() is not None:
                    self._verdicts.fail("gateway failed", f"{host.name}: {task.exception()!r}")
        check_unanswered(self._plan, self._cluster, self._verdicts)
        check_overshoot(self._plan, self._hosts, self._cluster, self._verdicts)
        self._groups.check_ceiling(self._plan, self._hosts, self._cluster, self._verdicts)
        self._groups.check_guarantees(self._plan, self._hosts, self._verdicts)

    def _on_dial(self, process: Process, protocol: asyncio.BaseProtocol) -> Tap | None:
        if not isinstance(protocol, BrokerEnd) or not isinstance(protocol._session, Session):
            return None
        session = protocol._session
        if session.peer not in self._cluster.peers:
            self._verdicts.fail("wrong client address", f"{process.name} serves {session.peer}, and no client has this address")
        tap = self._taps.get(session.peer)
        if tap is None:  # `dial_anyone` tries several addresses
            host = next(host for host in self._hosts if host.name == process.name)
            tap = self._taps[session.peer] = host.watch_dial(session)
        return tap

    def _on_end(self, connection: ClientConnection) -> None:
        """A gateway that ends a connection has passed on all responses to forwarded requests, unless it could not."""
        end = connection.transport.connection
        tap = self._taps.get(connection.peer)
        if connection.ended == "closed" or end.was_cut or tap is None or not tap.connected or tap.broken:
            return
        host = next(host for host in self._hosts if host.host == connection.gateway)
        for incarnation in host.incarnations:
            if tap in incarnation.taps and not incarnation.out_of_time(self._loop.time()):
                lost = sorted(set(connection.due) & set(tap.forwarded))
                if lost:
                    text = f"client {connection.client.plan.number}: {connection.ended} before the responses to {lost}"
                    self._verdicts.fail("response lost", text)

    def _on_error(self, _: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self._verdicts.fail("unhandled error", f"{context.get('message')}: {context.get('exception')!r}")


def _mutes_by_operators(plan: Plan) -> float:
    """The seconds that all bytes of the producers take at the lowest limit that operators set."""
    if not any(client.kind == "operator" for client in plan.clients):
        return 0.0
    produced = sum(client.requests * client.size for client in plan.clients if client.kind == "producer")
    return produced / min(value for value in ALTERED if value is not None)
