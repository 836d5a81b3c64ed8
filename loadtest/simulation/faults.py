"""The faults of a plan, put into effect at their times and healed later."""

import asyncio
from collections.abc import Callable

from gateway import clock
from gateway.cluster.record_batches import batches_of
from gateway.features.volume_quotas.limits import Limit, LimitType, Volume, VolumeUsage
from gateway.features.volume_quotas.usage_message import encode_usage
from loadtest.simulation.clients import SimulatedClient
from loadtest.simulation.gateway_host import GatewayHost
from loadtest.simulation.network import Network
from loadtest.simulation.own_connections import OwnTopics
from loadtest.simulation.plan import Fault, Plan

USAGE_TOPIC = "__weir_volume_usage"
AGENT_SECONDS = 1.0
SLOW_SECONDS = 0.2
RESTART_SECONDS = 0.2
_CAPACITY = 1_000_000
_EMPTY = 0.3


class Faults:
    """Knows all actors of a run. `heal` ends every fault."""

    def __init__(
        self, plan: Plan, network: Network, own: OwnTopics, hosts: list[GatewayHost], clients: list[SimulatedClient]
    ) -> None:
        self._plan = plan
        self._network = network
        self._own = own
        self._hosts = hosts
        self._clients = clients
        self._reloads = 0
        self._full = dict.fromkeys([broker.node for broker in own.cluster.brokers], _EMPTY)
        self._healed = False
        self._ended = False
        self._effects: dict[str, Callable[[Fault], None]] = {
            "cut_clients": self._cut_clients,
            "cut_brokers": self._cut_brokers,
            "slow_gateway": self._slow_gateway,
            "slow_broker": self._slow_broker,
            "stop_broker": self._stop_broker,
            "lose_topics": self._lose_topics,
            "delete_topic": self._delete_topic,
            "kill_gateway": self._kill_gateway,
            "restart_gateway": self._restart_gateway,
            "reload": self._reload,
            "broken_config": self._broken_config,
            "jump_wall_clock": self._jump_wall_clock,
            "fill_disk": self._fill_disk,
            "leave": self._leave,
            "cut_client": self._cut_client,
            "reset_client": self._reset_client,
        }

    def schedule(self, begin: float) -> None:
        for fault in self._plan.faults:
            self._network.at(begin + fault.at, lambda fault=fault: self._apply(fault))  # type: ignore[misc]

    def end(self) -> None:
        """Start no gateway any more."""
        self._ended = True

    def heal(self) -> None:
        """Start everything that is down, and let the network be whole."""
        self._healed = True
        self._network.slow.clear()
        self._own.lost.clear()
        for broker in self._own.cluster.brokers:
            broker.start()
            self._full[broker.node] = _EMPTY
        for host in self._hosts:
            host.write_config(host.settings)
            running = host.running
            if running is None:
                host.start()
            else:
                running.process.wall_offset = 0.0

    async def report_disks(self) -> None:
        """The agents beside the brokers."""
        while True:
            self._report()
            await asyncio.sleep(AGENT_SECONDS)

    def _report(self) -> None:
        topic = self._own.topics.get(USAGE_TOPIC)
        if topic is None:
            self._own.create(USAGE_TOPIC)
            topic = self._own.topics[USAGE_TOPIC]
        hard, soft = Limit(LimitType.MIN_FREE_PERCENTAGE, 5), Limit(LimitType.MIN_FREE_PERCENTAGE, 15)
        for broker in self._own.cluster.brokers:
            if broker.up:
                volume = Volume("/data", _CAPACITY, int(_CAPACITY * self._full[broker.node]))
                usage = VolumeUsage(broker.node, clock.wall(), hard, soft, (volume,))
                for batch, count in batches_of([encode_usage(usage)]):
                    topic.append(batch, count)

    def _apply(self, fault: Fault) -> None:
        if self._healed:
            return
        self._network.say(f"fault {fault}")
        self._effects[fault.kind](fault)

    def _later(self, fault: Fault, end: Callable[[], None]) -> None:
        self._network.at(self._network.now() + fault.seconds, end)

    # The network.

    def _cut_clients(self, fault: Fault) -> None:
        self._cut(fault, lambda peer: not peer.startswith("broker"))

    def _cut_brokers(self, fault: Fault) -> None:
        self._cut(fault, lambda peer: peer.startswith("broker"))

    def _cut(self, fault: Fault, chosen: Callable[[str], bool]) -> None:
        host = self._hosts[fault.target].host
        for end in list(self._network.open.values()):
            if end.process is not None and end.process.host == host and chosen(end.peer.address[0]):
                end.cut()

    def _slow_gateway(self, fault: Fault) -> None:
        self._slow(fault, self._hosts[fault.target].host)

    def _slow_broker(self, fault: Fault) -> None:
        self._slow(fault, self._own.cluster.brokers[fault.target].host)

    def _slow(self, fault: Fault, host: str) -> None:
        self._network.slow[host] = SLOW_SECONDS * (0.2 + fault.amount)

        def end() -> None:
            self._network.slow.pop(host, None)

        self._later(fault, end)

    def _cut_client(self, fault: Fault) -> None:
        connection = self._clients[fault.target].connection
        if connection is not None and connection.ended is None:
            connection.transport.connection.cut()

    def _reset_client(self, fault: Fault) -> None:
        self._clients[fault.target].abort_in_request()

    def _leave(self, fault: Fault) -> None:
        client = self._clients[fault.target]
        client.process.run(client.leave)

    # The cluster.

    def _stop_broker(self, fault: Fault) -> None:
        broker = self._own.cluster.brokers[fault.target]
        broker.stop()
        self._later(fault, broker.start)

    def _lose_topics(self, fault: Fault) -> None:
        name = self._hosts[fault.target].name
        self._own.lost.add(name)
        self._later(fault, lambda: self._own.lost.discard(name))

    def _delete_topic(self, fault: Fault) -> None:
        names = sorted(self._own.topics)
        if names:
            self._own.delete(names[int(fault.amount * len(names)) % len(names)])

    def _fill_disk(self, fault: Fault) -> None:
        node = self._own.cluster.brokers[fault.target].node
        self._full[node] = 0.8 + 0.2 * fault.amount
        self._report()

        def empty() -> None:
            self._full[node] = _EMPTY

        self._later(fault, empty)

    # The gateways.

    def _kill_gateway(self, fault: Fault) -> None:
        host = self._hosts[fault.target]
        host.kill()
        self._later(fault, lambda: self._start(host))

    def _restart_gateway(self, fault: Fault) -> None:
        host = self._hosts[fault.target]
        host.terminate()
        self._later(fault, lambda: self._start(host))

    def _start(self, host: GatewayHost) -> None:
        """Start it once the last process has ended."""
        if self._ended:
            return
        if host.running is not None:
            if host.running.terminated_at is not None:
                self._network.at(self._network.now() + RESTART_SECONDS, lambda: self._start(host))
            return
        host.start()

    def _reload(self, fault: Fault) -> None:
        self._reloads += 1
        settings = self._plan.settings[self._reloads % len(self._plan.settings)]
        for host in self._hosts:
            host.reload(settings, hangup=fault.amount < 0.5)

    def _broken_config(self, fault: Fault) -> None:
        self._hosts[fault.target].reload(None, hangup=fault.amount < 0.5)

    def _jump_wall_clock(self, fault: Fault) -> None:
        running = self._hosts[fault.target].running
        if running is not None:
            running.process.wall_offset += fault.amount
