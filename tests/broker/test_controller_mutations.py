"""A quota of 2 partitions per second with a burst of 22, with real clients and compared with the broker's own quota."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaProducer

from loadtest.scenarios.mutations.__main__ import RETRYING_ADMIN
from loadtest.scenarios.mutations.comparison import (
    KAFKA_PROPERTIES,
    broker_client,
    compare,
    set_broker_quotas,
    weir_client,
    weir_entities,
)
from loadtest.scenarios.mutations.raw import RawAdmin
from loadtest.scenarios.mutations.script import NUM_PARTITIONS, SCENARIOS, THROTTLED
from loadtest.testkit.kafka import KafkaCluster, ToolError, run_tool
from protocol.error_codes import ErrorCode
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

RATE, BURST = 2.0, 22.0
TOPICS = "org.apache.kafka.tools.TopicCommand"
CLIENTS = ["mixed", "older", "retries", "librdkafka", "guess"]
SLOW_CLIENTS = ["tokens", "tool", "decoy"]
SLOW_RATE, SLOW_BURST = 0.2, 2.2
"""So slow that no test pays a debt by taking long."""
PRODUCERS = ["maker", "produces-librdkafka", "produces-kafka-python", "produces-aiokafka"]
ONE_TOPIC = 0.01
"""A rate with which the first topic puts a client in debt for minutes."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    properties = {**KAFKA_PROPERTIES, "auto.create.topics.enable": "true"}
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), properties=properties) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def gateway(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    entities = (
        weir_entities(map(weir_client, SCENARIOS))
        + weir_entities(CLIENTS, RATE)
        + weir_entities(SLOW_CLIENTS, SLOW_RATE)
        + weir_entities(PRODUCERS, ONE_TOPIC)
    )
    config = {"quotas": {"entities": [*entities, {"client-id": "free", "exempt": True}]}}
    with Weir(tmp_path_factory.mktemp("weir"), cluster.bootstrap_servers, config) as weir:
        yield weir


def tokens(gateway: Weir, client_id: str) -> float:
    return gateway.metric("weir_quota_tokens", kind="controller_mutation", client_id=client_id)


def partitions(cluster: KafkaCluster, topic: str) -> int:
    """Return the number of partitions of a topic, by its broker."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    described = wait_until(lambda: admin.list_topics(timeout=60).topics.get(topic), f"{topic} is known")
    return len(described.partitions)


def test_quota_matches_the_brokers_own(cluster: KafkaCluster, gateway: Weir) -> None:
    set_broker_quotas(cluster.bootstrap_servers, map(broker_client, SCENARIOS))
    steps = compare(cluster.bootstrap_servers, gateway.bootstrap_servers)
    assert [step for step in steps if not step.same_topics] == []
    assert [step for step in steps if not step.same_time] == []
    assert sum(THROTTLED in step.weir.errors.values() for step in steps) > 15
    assert {step.scenario for step in steps if step.weir.throttle_time_ms} >= {"create_older", "delete_older", "grow_older"}


def test_topic_tool_creates_sixty_partitions_once(cluster: KafkaCluster, gateway: Weir, tmp_path: Path) -> None:
    (config := tmp_path / "tool.properties").write_text("client.id=tool\n")
    common = ("--bootstrap-server", gateway.bootstrap_servers, "--command-config", str(config), "--create")
    assert "Created topic tool-1." in run_tool(TOPICS, *common, "--topic", "tool-1", "--partitions", "60")
    with pytest.raises(ToolError, match="throttling quota has been exceeded"):
        run_tool(TOPICS, *common, "--topic", "tool-2", "--partitions", "1")
    assert partitions(cluster, "tool-1") == 60


def test_java_admin_client_retries_until_all_is_created(cluster: KafkaCluster, gateway: Weir) -> None:
    before = gateway.metric("weir_throttled_requests_total", kind="controller_mutation", client_id="retries")
    run_tool(RETRYING_ADMIN, gateway.bootstrap_servers, "retries", "java-1=23", "java-2=2", "java-3=1")
    assert [partitions(cluster, f"java-{number}") for number in (1, 2, 3)] == [23, 2, 1]
    assert gateway.metric("weir_throttled_requests_total", kind="controller_mutation", client_id="retries") > before


def test_librdkafka_is_throttled_and_never_refused(cluster: KafkaCluster, gateway: Weir) -> None:
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap_servers, "client.id": "librdkafka"})
    seconds = "weir_throttle_seconds_total"
    for future in admin.create_topics([NewTopic("rd-1", 12, 1), NewTopic("rd-2", 12, 1)], request_timeout=60).values():
        future.result()
    assert gateway.metric(seconds, kind="controller_mutation", client_id="librdkafka") == pytest.approx(1.0, rel=0.5)
    admin.create_partitions([NewPartitions("rd-1", 13)], request_timeout=60)["rd-1"].result()
    assert partitions(cluster, "rd-2") == 12
    wait_until(lambda: partitions(cluster, "rd-1") == 13, "rd-1 has grown")


def test_mixed_request_keeps_its_order_and_errors(gateway: Weir) -> None:
    with closing(RawAdmin(gateway.bootstrap_servers, "mixed")) as admin:
        admin.create([{"name": "mixed-there", "count": 2}])
        topics = [("b", 15), ("mixed-there", 9), ("zero", 0), ("a", 15), ("z", 1), ("c", 1), ("zero", 4)]
        answer = admin.create([{"name": name, "count": count} for name, count in topics])
    messages = {name: message for name, _, message in answer.topics}
    assert [(name, error) for name, error, _ in answer.topics] == [
        ("b", 0), ("mixed-there", 36), ("zero", 42), ("a", 0), ("z", 89), ("c", 89),
    ]  # fmt: skip
    assert (messages["z"], messages["mixed-there"]) == (None, "Topic 'mixed-there' already exists.")


def test_decoy_does_not_lift_the_quota(gateway: Weir) -> None:
    """The controller drops `__cluster_metadata` before it counts a request's partitions. The other topics are valid."""
    decoy = {"name": "__cluster_metadata", "count": 10_001}
    for number, error in enumerate([0, THROTTLED, THROTTLED]):
        with closing(RawAdmin(gateway.bootstrap_servers, "decoy")) as admin:
            assert admin.create([decoy, {"name": f"decoy-{number}", "count": 30}]).errors[f"decoy-{number}"] == error
    assert tokens(gateway, "decoy") > SLOW_BURST - 31


def test_tokens_metric_matches_throttle_times(gateway: Weir) -> None:
    with closing(RawAdmin(gateway.bootstrap_servers, "tokens")) as admin:
        assert admin.create([{"name": "tokens-1", "count": 60}]).throttle_time_ms == 0
    before = tokens(gateway, "tokens")
    with closing(RawAdmin(gateway.bootstrap_servers, "tokens")) as admin:
        throttle_seconds = admin.create([{"name": "tokens-2", "count": 1}]).throttle_time_ms / 1000
    after = tokens(gateway, "tokens")
    assert SLOW_BURST - 60 <= before <= -throttle_seconds * SLOW_RATE + 0.002 <= after + 0.004
    assert gateway.metric("weir_quota_limit", kind="controller_mutation", client_id="tokens") == SLOW_RATE
    wait_until(lambda: gateway.metric("weir_quota_usage", kind="controller_mutation", client_id="tokens") > 0, "usage is shown")


def test_older_request_is_throttled_and_never_refused(cluster: KafkaCluster, gateway: Weir) -> None:
    with closing(RawAdmin(gateway.bootstrap_servers, "older")) as admin:
        answer = admin.create([{"name": f"older-{number}", "count": 30} for number in range(2)], version=5)
    assert [error for _, error, _ in answer.topics] == [0, 0]
    assert answer.throttle_time_ms > 0
    with closing(RawAdmin(gateway.bootstrap_servers, "older")) as admin:
        deleted = admin.delete(["older-0", "older-1"], version=3)
    assert deleted.errors == {"older-0": 0, "older-1": 0}
    assert deleted.throttle_time_ms > answer.throttle_time_ms


def test_default_partition_count_is_known_at_first_use(gateway: Weir) -> None:
    created = int(BURST // NUM_PARTITIONS) + 1
    with closing(RawAdmin(gateway.bootstrap_servers, "guess")) as admin:
        answer = admin.create([{"name": f"guess-{number}"} for number in range(created + 1)])
    assert [error for _, error, _ in answer.topics] == [0] * created + [THROTTLED]
    assert "not known" not in gateway.log()


def produce_librdkafka(servers: str, client_id: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "client.id": client_id, "message.timeout.ms": 120_000})
    producer.produce(topic, b"x")
    assert producer.flush(120) == 0


def produce_kafka_python(servers: str, client_id: str, topic: str) -> None:
    with closing(KafkaProducer(bootstrap_servers=servers, client_id=client_id)) as producer:
        producer.send(topic, b"x").get(120)


def produce_aiokafka(servers: str, client_id: str, topic: str) -> None:
    async def produce() -> None:
        async with AIOKafkaProducer(bootstrap_servers=servers, client_id=client_id) as producer:
            await producer.send_and_wait(topic, b"x")

    asyncio.run(produce())


@pytest.mark.parametrize("produce", [produce_librdkafka, produce_kafka_python, produce_aiokafka])
def test_topic_that_a_producer_creates_costs_its_partitions(
    produce: Callable[[str, str, str], None], cluster: KafkaCluster, gateway: Weir
) -> None:
    name = produce.__name__.removeprefix("produce_").replace("_", "-")
    produce(gateway.bootstrap_servers, f"produces-{name}", f"created-{name}")
    assert partitions(cluster, f"created-{name}") == NUM_PARTITIONS
    assert tokens(gateway, f"produces-{name}") == pytest.approx(ONE_TOPIC * 11 - NUM_PARTITIONS, abs=ONE_TOPIC * 120)


def test_topics_over_the_quota_are_not_created(cluster: KafkaCluster, gateway: Weir) -> None:
    names = [f"maker-{number}" for number in range(4)]

    def created() -> set[str]:
        return set(names).intersection(AdminClient(direct).list_topics(timeout=60).topics)

    direct = {"bootstrap.servers": cluster.bootstrap_servers}
    with closing(RawAdmin(gateway.bootstrap_servers, "maker")) as admin:
        assert set(admin.describe(names, create=True).errors.values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        wait_until(created, "the first topic is created")
        admin.describe(names, create=True)
    with closing(RawAdmin(cluster.bootstrap_servers, "direct")) as broker:
        broker.create([{"name": "maker-fence", "count": 1}])
    partitions(cluster, "maker-fence")  # the controller executes one creation after the other
    assert created() == {names[0]}


def test_exempt_client_is_free(gateway: Weir) -> None:
    with closing(RawAdmin(gateway.bootstrap_servers, "free")) as admin:
        for number in range(3):
            answer = admin.create([{"name": f"free-{number}", "count": 50}])
            assert (answer.throttle_time_ms, *answer.errors.values()) == (0, 0)
