"""Restarts three gateways under load, one after the other."""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from loadtest.scenarios.rolling_restart.balancer import LOOK_SECONDS, Backend, Balancer
from loadtest.scenarios.rolling_restart.clients import (
    WITHOUT_ANSWERS,
    AiokafkaClients,
    Client,
    JavaConsumer,
    JavaProducer,
    LibrdkafkaConsumer,
    LibrdkafkaProducer,
    topic,
)
from loadtest.testkit.gateway_process import BROKER_PORTS, CompiledGateway, GatewayProcess, MakeGateway
from loadtest.testkit.kafka import KafkaCluster, free_port_range

REPLICAS = 3
PARTITIONS = 3
LIBRARIES = ("java", "librdkafka", "aiokafka")
DRAIN_DELAY_SECONDS = 3 * LOOK_SECONDS

_HOST = "127.0.0.1"
_TIMEOUT = 60.0
_SETTLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Pauses:
    """One client's longest times without a response, in seconds: before the restarts, in each restart, and their sum."""

    before: float
    restarts: tuple[float, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Report:
    """The results.

    `lost` records were acknowledged but are not in the log; `doubled` ones are there twice. `missed` ones are in the log but
    did not reach the consumer; `again` ones reached it more than once, which a consumer group allows. `unanswered` records
    were sent with acks=0, and `unanswered_lost` of them are not in the log. The balancer sent `refused` connections to a
    gateway that accepted no more. The gateways report `drained` and `cut` connections and `drain_seconds`.
    """

    restarts: int
    seconds: float
    acknowledged: int
    lost: int
    doubled: int
    unanswered: int
    unanswered_lost: int
    missed: int
    again: int
    refused: int
    drained: int
    cut: int
    drain_seconds: tuple[float, ...]
    errors: tuple[str, ...]
    pauses: dict[str, Pauses]


def run(
    cluster: KafkaCluster,
    directory: Path,
    make: MakeGateway = CompiledGateway,
    config: dict[str, Any] | None = None,
) -> Report:
    """Restart the gateways in front of a cluster. `make` starts them; `config` extends their configuration."""
    with ExitStack() as open_then:
        gateways, balancer, servers = _replicas(open_then, cluster, directory, make, config or {})
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        topics = [NewTopic(topic(name), PARTITIONS) for name in (*LIBRARIES, WITHOUT_ANSWERS)]
        for future in admin.create_topics(topics).values():
            future.result(_TIMEOUT)
        aiokafka = AiokafkaClients(servers)
        producers = [JavaProducer(servers, directory), LibrdkafkaProducer(servers), aiokafka.producer]
        consumers = [JavaConsumer(servers), LibrdkafkaConsumer(servers), aiokafka.consumer]
        clients = [*producers, *consumers]
        _wait_until(lambda: all(client.times for client in clients), "everybody gets answers")
        unanswered = LibrdkafkaProducer(servers, answers=False)
        settled = time.monotonic()
        time.sleep(_SETTLE_SECONDS)
        turns = []
        for gateway, backend in zip(gateways, balancer.backends, strict=True):
            turns.append(time.monotonic())
            gateway.stop()
            gateway.start()
            _wait_until(partial(getattr, backend, "ready"), "the balancer sees the gateway as ready")
        restarted = time.monotonic()
        time.sleep(_SETTLE_SECONDS)
        turns.append(time.monotonic())
        for producer in (*producers, unanswered):
            producer.stop()
        written = {library: _log_of(cluster, topic(library)) for library in LIBRARIES}
        for consumer, values in zip(consumers, written.values(), strict=True):
            _wait_until(partial(consumer.has, values), f"{consumer.name} has all records")
            consumer.stop()
        aiokafka.join()
        unanswered_log = _log_of(cluster, topic(WITHOUT_ANSWERS))  # checked last, because acks=0 has no acknowledgements
        ends = [event for gateway in gateways for event in _events(gateway) if "drained" in event]
        pairs = list(zip(producers, consumers, written.values(), strict=True))
        return Report(
            restarts=len(gateways),
            seconds=round(restarted - turns[0], 1),
            acknowledged=sum(producer.values.total() for producer in producers),
            lost=sum((producer.values - values).total() for producer, _, values in pairs),
            doubled=sum(values.total() - len(values) for _, _, values in pairs),
            unanswered=unanswered.values.total(),
            unanswered_lost=(unanswered.values - unanswered_log).total(),
            missed=sum(len(values.keys() - consumer.values.keys()) for _, consumer, values in pairs),
            again=sum(consumer.values.total() - len(consumer.values) for consumer in consumers),
            refused=sum(backend.refused for backend in balancer.backends),
            drained=sum(event["drained"] for event in ends),
            cut=sum(event["cut"] for event in ends),
            drain_seconds=tuple(event["seconds"] for event in ends),
            errors=tuple(f"{client.name}: {error}" for client in (*clients, unanswered) for error in client.errors),
            pauses={client.name: _pauses(client, settled, turns) for client in clients},
        )


def _replicas(
    open_then: ExitStack, cluster: KafkaCluster, directory: Path, make: MakeGateway, config: dict[str, Any]
) -> tuple[list[GatewayProcess], Balancer, str]:
    """Gateways on their own addresses that advertise the balancer's address, and the bootstrap address for clients."""
    first = free_port_range(1 + BROKER_PORTS)
    ports = {"bootstrap_port": first, "broker_ports": f"{first + 1}-{first + BROKER_PORTS}"}
    connections = {"drain_delay_seconds": DRAIN_DELAY_SECONDS}
    gateways, backends = [], []
    for number in range(REPLICAS):
        host = f"127.0.0.{number + 2}"
        listener = {"host": host, "advertised_host": _HOST, **ports}
        gateway = make(
            directory / f"weir-{number}", cluster.bootstrap_servers, {"connections": connections, **config}, listener
        )
        gateways.append(open_then.enter_context(gateway))
        backends.append(Backend(host, gateway.config["admin"]["port"]))
    balancer = open_then.enter_context(Balancer(_HOST, range(first, first + 1 + BROKER_PORTS), backends))
    _wait_until(lambda: all(backend.ready for backend in backends), "the balancer sees all gateways as ready")
    return gateways, balancer, f"{_HOST}:{first}"


def _log_of(cluster: KafkaCluster, name: str) -> Counter[str]:
    """The number of times that each record is in a topic's log."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "log", "enable.auto.commit": False})
    partitions = [TopicPartition(name, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)]
    ends = sum(consumer.get_watermark_offsets(partition, timeout=_TIMEOUT)[1] for partition in partitions)
    consumer.assign(partitions)
    values: Counter[str] = Counter()
    deadline = time.monotonic() + _TIMEOUT
    while values.total() < ends and time.monotonic() < deadline:
        values.update(
            (message.value() or b"").decode() for message in consumer.consume(1_000, timeout=0.2) if not message.error()
        )
    consumer.close()
    return values


def _events(gateway: GatewayProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gateway.log().splitlines()]


def _pauses(client: Client, settled: float, turns: Sequence[float]) -> Pauses:
    """`turns` are the start times of the restarts, and the end of the last one."""
    before = _longest(client, settled, turns[0])
    each = tuple(_longest(client, begin, end) for begin, end in pairwise(turns))
    return Pauses(before, each, round(sum(each), 2))


def _longest(client: Client, begin: float, end: float) -> float:
    times = [time for time in client.times if begin <= time < end]
    return round(max((later - sooner for sooner, later in pairwise(times)), default=end - begin), 2)


def _wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_TIMEOUT:.0f} s: {what}")
        time.sleep(0.02)
