"""A topic's threshold with Kafka's own kafka-configs, through the gateway."""

from contextlib import closing
from uuid import uuid4

import pytest

from loadtest.testkit.kafka import KafkaCluster
from tests.broker.test_quota_api import ConfigTool
from tests.broker.topics import create_topic
from tests.weir_process import Weir

pytestmark = pytest.mark.broker

KEY = "bytes.in.per.sec.threshold"


def test_kafka_configs_sets_describes_and_removes_threshold(kafka: KafkaCluster, tmp_path) -> None:
    topic = create_topic(kafka.bootstrap_servers, f"threshold-{uuid4().hex[:8]}", partitions=1)
    quotas = {"topics": {"total.bytes.in.per.sec.threshold": 1_000_000, KEY: {topic: 300_000}}}
    config = {"quotas": quotas, "quota_admins": ["User:ANONYMOUS"]}
    of_topic = f"--entity-type topics --entity-name {topic}"
    with Weir(tmp_path, kafka.bootstrap_servers, config) as gateway, closing(ConfigTool()) as tool:

        def run(arguments: str, bootstrap_servers: str = gateway.bootstrap_servers) -> tuple[str, str]:
            outcome = tool.run(bootstrap_servers, arguments)
            return outcome.code, outcome.out + outcome.err

        assert run(f"--alter {of_topic} --add-config {KEY}=400000,retention.ms=7200000")[0] == "0"
        _, shown = run(f"--describe {of_topic}")
        synonyms = f"DYNAMIC_TOPIC_CONFIG:{KEY}=400000, STATIC_BROKER_CONFIG:{KEY}=300000"
        assert f"{KEY}=400000 sensitive=false synonyms={{{synonyms}}}" in shown
        assert "retention.ms=7200000" in shown
        _, direct = run(f"--describe {of_topic}", kafka.bootstrap_servers)
        assert KEY not in direct
        assert "retention.ms=7200000" in direct

        code, complaint = run(f"--alter {of_topic} --add-config {KEY}=1000001")
        assert code == "1"
        assert "would add up to 1000001, 1 more than total.bytes.in.per.sec.threshold 1000000" in complaint
        assert run(f"--alter {of_topic} --delete-config {KEY},retention.ms")[0] == "0"
        assert KEY not in run(f"--describe {of_topic}")[1]
        assert f"{KEY}=300000" in run(f"--describe --all {of_topic}")[1]
        code, complaint = run(f"--alter --entity-type topics --entity-name {topic}-not --add-config {KEY}=1")
        assert code == "1"
        assert "UnknownTopicOrPartition" in complaint or "does not" in complaint
