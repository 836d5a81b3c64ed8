"""The Java client and Kafka's own tools work through Weir as they do directly."""

import json
from pathlib import Path

import pytest

from loadtest.testkit.kafka import run_tool, start_tool
from tests.broker.broker_features import CONSUMER_GROUPS, SHARE_GROUPS
from tests.broker.conftest import Target
from tests.broker.records import ACKS, CODECS, PARTITIONS

pytestmark = pytest.mark.broker

MATRIX = Path(__file__).with_name("ClientMatrix.java")
CHECKS = {
    *(f"produce-{acks}-{codec}" for acks in ACKS for codec in CODECS),
    *(f"{what}-{protocol}" for what in ("group", "transactions") for protocol in ("classic", "consumer")),
    *("idempotent", "share-group", "admin-topics", "admin-groups", "admin-cluster"),
}
NEEDS = {"group-consumer": CONSUMER_GROUPS, "transactions-consumer": CONSUMER_GROUPS, "share-group": SHARE_GROUPS}
TOOLS = "org.apache.kafka.tools."


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_java_clients_pass_all_checks(target: Target) -> None:
    left_out = {check for check, feature in NEEDS.items() if not feature.exists()}
    output = lines(run_tool(MATRIX, target.bootstrap_servers, str(target.brokers), *left_out, timeout=240))
    assert [line for line in output if line.startswith("FAIL")] == []
    assert {line.removeprefix("PASS ") for line in output if line.startswith("PASS ")} == CHECKS - left_out
    brokers = {line.removeprefix("BROKER ") for line in output if line.startswith("BROKER ")}
    assert len(brokers) == target.brokers
    if target.ports is not None:
        assert brokers <= {f"127.0.0.1:{port}" for port in target.ports}


def test_topic_tool_manages_topics(target: Target) -> None:
    topic = target.name("tool")
    common = ("--bootstrap-server", target.bootstrap_servers, "--topic", topic)

    def run(*arguments: str) -> str:
        return run_tool(f"{TOOLS}TopicCommand", *common, *arguments)

    assert f"Created topic {topic}." in run(
        "--create", "--partitions", str(PARTITIONS), "--replication-factor", str(target.brokers)
    )
    run("--alter", "--partitions", str(PARTITIONS + 1))
    described = lines(run("--describe"))
    assert f"PartitionCount: {PARTITIONS + 1}\tReplicationFactor: {target.brokers}" in described[0]
    assert len(described) == 1 + PARTITIONS + 1
    run("--delete")


def test_config_tool_alters_and_describes_topics(target: Target) -> None:
    topic = target.create_topic()
    common = ("--bootstrap-server", target.bootstrap_servers, "--entity-type", "topics", "--entity-name", topic)
    run_tool("kafka.admin.ConfigCommand", *common, "--alter", "--add-config", "retention.ms=3600000")
    assert "retention.ms=3600000 " in run_tool("kafka.admin.ConfigCommand", *common, "--describe")


def test_verifiable_tools_read_what_they_wrote(target: Target) -> None:
    topic, group, count = target.create_topic(), target.name("group"), 3_000
    servers = ("--bootstrap-server", target.bootstrap_servers, "--topic", topic)
    produced = run_tool(f"{TOOLS}VerifiableProducer", *servers, "--max-messages", str(count), "--acks", "-1")
    events = [json.loads(line) for line in lines(produced)]
    sent = sorted((event["partition"], event["offset"]) for event in events if event["name"] == "producer_send_success")
    assert len(sent) == count

    consumer = (*servers, "--group-id", group, "--max-messages", str(count), "--verbose")
    protocol = "consumer" if CONSUMER_GROUPS.exists() else "classic"
    consumed = run_tool(f"{TOOLS}VerifiableConsumer", *consumer, "--group-protocol", protocol)
    events = [json.loads(line) for line in lines(consumed)]
    arrived = [(event["partition"], event["offset"]) for event in events if event["name"] == "record_data"]
    assert sorted(arrived) == sent

    groups = run_tool(
        f"{TOOLS}consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", target.bootstrap_servers, "--describe", "--offsets", "--group", group),
    )
    rows = [line.split() for line in lines(groups) if line.startswith(group)]
    assert len(rows) == len({partition for partition, _ in sent})
    header = next(line.split() for line in lines(groups) if "LAG" in line)
    assert {row[header.index("LAG")] for row in rows} == {"0"}


def test_console_tools_read_what_they_wrote(target: Target) -> None:
    topic, group = target.create_topic(), target.name("share")
    sent = [f"key-{index}\tvalue {index} ключ" for index in range(100)]
    producer = start_tool(
        f"{TOOLS}ConsoleProducer",
        *("--bootstrap-server", target.bootstrap_servers, "--topic", topic, "--compression-codec", "zstd"),
        *("--reader-property", "parse.key=true", "--reader-property", "key.separator=\t"),
        stdin=-1,
    )
    assert producer.process.stdin is not None
    with producer.process.stdin as stdin:
        stdin.write("".join(line + "\n" for line in sent))
    producer.finish()

    servers = ("--bootstrap-server", target.bootstrap_servers, "--topic", topic, "--max-messages", str(len(sent)))
    printing = ("--timeout-ms", "60000", "--formatter-property", "print.key=true")
    consumed = run_tool(f"{TOOLS}consumer.ConsoleConsumer", *servers, *printing, "--from-beginning")
    assert sorted(lines(consumed)) == sorted(sent)

    SHARE_GROUPS.require()
    run_tool(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", target.bootstrap_servers, "--entity-type", "groups", "--entity-name", group),
        *("--alter", "--add-config", "share.auto.offset.reset=earliest"),
    )
    shared = run_tool(f"{TOOLS}consumer.ConsoleShareConsumer", *servers, *printing, "--group", group)
    assert sorted(lines(shared)) == sorted(sent)


def test_performance_tools_read_what_they_wrote(target: Target) -> None:
    topic, count = target.create_topic(), 20_000
    produced = run_tool(
        f"{TOOLS}ProducerPerformance",
        *("--bootstrap-server", target.bootstrap_servers, "--topic", topic, "--num-records", str(count)),
        *("--record-size", "100", "--throughput", "-1"),
    )
    assert f"{count} records sent" in lines(produced)[-1]
    consumed = run_tool(
        f"{TOOLS}ConsumerPerformance",
        *("--bootstrap-server", target.bootstrap_servers, "--topic", topic, "--num-records", str(count)),
        *("--timeout", "60000"),
    )
    table = [[cell.strip() for cell in line.split(",")] for line in lines(consumed)]
    header = next(row for row in table if "data.consumed.in.nMsg" in row)
    assert table[-1][header.index("data.consumed.in.nMsg")] == str(count)
