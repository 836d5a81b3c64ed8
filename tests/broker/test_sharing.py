"""Four gateways share one quota on a real Kafka, whichever of them the clients use and whichever dies."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from loadtest.scenarios.evenness.logs import log_bytes
from loadtest.testkit.fleet import AUTHORIZER, CLIENT_ID, USAGE_TOPIC, Load, UnpacedProducer, UsageTopicAccess, start_fleet
from loadtest.testkit.kafka import KafkaCluster
from protocol.api_keys import ApiKey
from tests.broker.rates import wait_for_rate
from tests.broker.request_client import RequestClient
from tests.broker.test_quota_api import alter, parts
from tests.broker.topics import create_topic
from tests.weir_process import Weir, wait_until

pytestmark = pytest.mark.broker

GATEWAYS = 4
QUOTA = 2_000_000
BURST_SECONDS = 1
"""The burst in seconds of the quota: `quotas.window` has two samples."""
TIMEOUT = 60.0

QUOTAS = {
    "entities": [{"client-id": CLIENT_ID, "producer_byte_rate": QUOTA}],
    "window": {"samples": BURST_SECONDS + 1, "seconds": 1},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), 1, AUTHORIZER) as running:
        yield running


class Fleet:
    """Gateways that share a quota, a topic to write to, and its log."""

    def __init__(self, cluster: KafkaCluster, gateways: list[Weir]) -> None:
        self.cluster = cluster
        self.gateways = gateways
        self.topic = create_topic(cluster.bootstrap_servers, f"shared-{uuid4().hex[:8]}", partitions=1)
        self.load = Load(gateways, self.topic)
        self.access = UsageTopicAccess(cluster.bootstrap_servers)

    def metric(self, name: str) -> list[float]:
        return [gateway.metric(name) for gateway in self.gateways if gateway.process.poll() is None]

    def wait_for(self, members: int, reachable: int = 1) -> None:
        """Wait until all running gateways report these figures."""
        wait_until(
            lambda: (
                set(self.metric("weir_sharing_members")) == {members}
                and set(self.metric("weir_sharing_reachable")) == {reachable}
            ),
            f"{members} members, reachable {reachable}",
            TIMEOUT,
        )

    def written(self) -> int:
        return log_bytes(self.cluster.brokers[0].directory / "data" / f"{self.topic}-0")

    def wait_for_rate(self, expected: float) -> None:
        """Wait until this fraction of the quota is written to the log."""
        wait_for_rate(self.written, expected * QUOTA)


@pytest.fixture
def fleet(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("fleet")
        config = {"quotas": QUOTAS}
        running = Fleet(cluster, start_fleet(stack, Weir, directory, cluster.bootstrap_servers, GATEWAYS, config))
        stack.callback(running.load.close)
        running.wait_for(GATEWAYS)
        yield running


def test_quota_is_shared_despite_moves_and_a_kill(fleet: Fleet) -> None:
    fleet.load.put([2, 2, 2, 2])
    fleet.wait_for_rate(1.0)
    fleet.load.put([8, 0, 0, 0])
    fleet.wait_for_rate(1.0)
    fleet.gateways[1].process.kill()
    fleet.gateways[1].process.wait()
    fleet.load.put([2, 0, 2, 2])
    fleet.wait_for(GATEWAYS - 1)
    fleet.wait_for_rate(1.0)
    assert fleet.load.trouble() == 0
    fleet.gateways[1].start()
    fleet.wait_for(GATEWAYS)


def test_gateways_without_the_topic_recover_by_themselves(fleet: Fleet) -> None:
    fleet.load.put([2, 2, 2, 2])
    wait_until(lambda: fleet.written() > QUOTA * (BURST_SECONDS + 1), "the load", TIMEOUT)
    # Each producer has one bootstrap connection and another one to its broker.
    wait_until(lambda: min(fleet.metric("weir_connections_accepted_total")) >= 2 * 2, "all have connected", TIMEOUT)
    connections = fleet.metric("weir_connections_accepted_total")
    earlier = len(fleet.gateways[0].events())
    fleet.access.deny()
    try:
        fleet.wait_for(GATEWAYS, reachable=0)
        assert all(gateway.not_ready() == "" for gateway in fleet.gateways)
        fleet.wait_for_rate(GATEWAYS)
        for gateway in fleet.gateways:
            gateway.write_config({**gateway.config, "sharing": {"when_unreachable": "fair_share"}})
        wait_until(lambda: set(fleet.metric("weir_config_version")) == {2.0}, "the new config", TIMEOUT)
        fleet.wait_for_rate(1.0)
    finally:
        fleet.access.allow()
    fleet.wait_for(GATEWAYS)
    fleet.wait_for_rate(1.0)
    assert fleet.metric("weir_connections_accepted_total") == connections, "no client had to reconnect"
    assert fleet.load.trouble() == 0
    lines = [(event["members"], event["reachable"]) for event in fleet.gateways[0].events()[earlier:] if "reachable" in event]
    assert all(one != other for one, other in pairwise(lines)), "one log line for each change"
    assert (lines[0][1], lines[-1][1]) == (False, True)


def test_deleted_usage_topic_is_created_again(fleet: Fleet) -> None:
    before = fleet.metric("weir_sharing_messages_total")
    admin = AdminClient({"bootstrap.servers": fleet.cluster.bootstrap_servers})
    admin.delete_topics([USAGE_TOPIC])[USAGE_TOPIC].result(TIMEOUT)
    wait_until(
        lambda: (
            USAGE_TOPIC in admin.list_topics(timeout=TIMEOUT).topics
            and all(now > then + 30 for now, then in zip(fleet.metric("weir_sharing_messages_total"), before, strict=True))
        ),
        "messages in the new topic",
        TIMEOUT,
    )
    fleet.wait_for(GATEWAYS)
    wait_until(lambda: "deleted and created again" in fleet.gateways[0].log(), "the log reports the new topic")


def test_stopping_gateway_publishes_tombstone(fleet: Fleet) -> None:
    identity = fleet.gateways[0].api("sharing")["identity"].encode()
    assert fleet.gateways[0].stop() == 0
    values = values_of(fleet.cluster.bootstrap_servers, USAGE_TOPIC, identity)
    assert values[-1] is None
    assert None not in values[:-1]
    fleet.wait_for(GATEWAYS - 1)


def values_of(bootstrap_servers: str, topic: str, key: bytes) -> list[bytes | None]:
    """Return the values of a key so far in the only partition of a topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "reads-all", "enable.auto.commit": False})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT)
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        records = [consumer.poll(TIMEOUT)]
        while records[-1].offset() < end - 1:
            records.append(consumer.poll(TIMEOUT))
        return [record.value() for record in records if record.key() == key]
    finally:
        consumer.close()


def test_topic_threshold_counts_all_gateways(cluster: KafkaCluster, tmp_path: Path) -> None:
    topics = {"total.bytes.in.per.sec.threshold": 10_000, "meter": "window"}
    with ExitStack() as stack:
        config = {"quotas": {"topics": topics}}
        writes, hears = start_fleet(stack, Weir, tmp_path, cluster.bootstrap_servers, 2, config)
        topic = create_topic(cluster.bootstrap_servers, f"shared-{uuid4().hex[:8]}", partitions=1)
        load = Load([writes], topic)
        stack.callback(load.close)
        wait_until(lambda: hears.metric("weir_sharing_members") == 2, "the gateways know each other", TIMEOUT)
        load.put([1])
        wait_until(lambda: hears.metric("weir_topics_over") == 1, "the bytes appended through the other gateway", TIMEOUT)
        assert hears.metric("weir_topics_rate") > 10_000  # limit and rate are those of the cluster


def test_ceiling_of_a_group_holds_for_all_members(cluster: KafkaCluster, tmp_path: Path) -> None:
    """Six client-ids at two gateways. The quota API lowers the ceiling at both."""
    jobs = {"name": "jobs", "match": [{"client-id": "job-*"}], "producer_byte_rate": QUOTA}
    quotas = {"groups": [jobs], "window": QUOTAS["window"]}
    with ExitStack() as stack:
        config = {"quotas": quotas, "quota_admins": ["User:ANONYMOUS"]}
        gateways = start_fleet(stack, Weir, tmp_path, cluster.bootstrap_servers, 2, config)
        topic = create_topic(cluster.bootstrap_servers, f"group-{uuid4().hex[:8]}", partitions=1)
        log = cluster.brokers[0].directory / "data" / f"{topic}-0"
        for number in range(6):
            producer = UnpacedProducer(gateways[number % 2].bootstrap_servers, topic, f"job-{number}")
            stack.callback(producer.close)
        wait_for_rate(lambda: log_bytes(log), QUOTA)
        assert all(gateway.metric("weir_group_limit", group="jobs", kind="produce") == QUOTA for gateway in gateways)
        with RequestClient(gateways[0].bootstrap_servers) as client:
            group = [{"entity_type": "group", "entity_name": "jobs"}]
            ops = [{"key": "producer_byte_rate", "value": QUOTA / 2, "remove": False}]
            entries = [{"entity": group, "ops": ops}]
            answer = client.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": entries, "validate_only": False})
        assert [entry["error_code"] for entry in answer["entries"]] == [0]
        wait_for_rate(lambda: log_bytes(log), QUOTA / 2)


def test_quota_of_the_brokers_is_a_cause_in_the_log(cluster: KafkaCluster, tmp_path: Path) -> None:
    """The brokers' default quotas hold for Weir's own client as well."""
    own = parts(user="ANONYMOUS", client_id="weir")
    with RequestClient(cluster.bootstrap_servers) as admin:
        alter(admin, own, consumer_byte_rate=100.0)
        try:
            with Weir(tmp_path, cluster.bootstrap_servers, {"sharing": {}}) as gateway:
                wait_until(lambda: gateway.metric("weir_sharing_reachable") == 0, "the brokers throttle Weir's own client")
                (line,) = gateway.logged("is unreachable")
        finally:
            alter(admin, own, consumer_byte_rate=None)
    assert line["msg"].endswith("see if a quota of the brokers throttles its client-id weir")
