"""kcat, with the librdkafka of Debian stable (2.0), works through Weir as it does directly."""

import json
import subprocess

import pytest

from tests.broker.conftest import Target
from tests.broker.records import ACKS, CODECS, PARTITIONS
from tests.weir_process import wait_until

pytestmark = pytest.mark.broker

LINES = [f"key-{index}\tvalue {index} ключ {'x' * (index * 37 % 2_000)}" for index in range(200)]


def run(kcat: str, target: Target, *arguments: str, stdin: str = "") -> str:
    command = [kcat, "-b", target.bootstrap_servers, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def produce(kcat: str, target: Target, topic: str, *arguments: str) -> None:
    for partition in range(PARTITIONS):
        stdin = "".join(f"{line}\n" for line in LINES[partition::PARTITIONS])
        run(kcat, target, "-P", "-t", topic, "-p", str(partition), "-K", "\t", *arguments, stdin=stdin)


def end(kcat: str, target: Target, topic: str, partition: int) -> int:
    """Return the offset after the last record that consumers may read."""
    latest = -1
    return int(run(kcat, target, "-Q", "-t", f"{topic}:{partition}:{latest}").split()[-1])


def assert_holds_what_was_sent(kcat: str, target: Target, topic: str) -> None:
    for partition in range(PARTITIONS):
        sent = LINES[partition::PARTITIONS]
        # With acks below `all`, records are acknowledged before consumers may read them, and kcat ends at the last readable.
        wait_until(lambda: end(kcat, target, topic, partition) >= len(sent), f"{len(sent)} readable records")  # noqa: B023
        reading = ("-C", "-q", "-e", "-o", "beginning", "-f", "%k\t%s\n")
        consumed = run(kcat, target, *reading, "-t", topic, "-p", str(partition))
        assert consumed.splitlines() == sent


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ACKS)
def test_each_record_arrives_as_sent(kcat: str, target: Target, acks: str, codec: str) -> None:
    topic = target.create_topic()
    produce(kcat, target, topic, "-z", codec, "-X", f"acks={acks}")
    assert_holds_what_was_sent(kcat, target, topic)


@pytest.mark.parametrize("setting", ["enable.idempotence=true", "transactional.id=kcat"])
def test_idempotent_and_transactional_producers_deliver_all(kcat: str, target: Target, setting: str) -> None:
    topic = target.create_topic()
    produce(kcat, target, topic, "-X", setting)
    assert_holds_what_was_sent(kcat, target, topic)


def test_group_reads_all_records(kcat: str, target: Target) -> None:
    topic, group = target.create_topic(), target.name("group")
    produce(kcat, target, topic)
    reading = ("-q", "-X", "auto.offset.reset=earliest", "-f", "%k\t%s\n")
    consumed = run(kcat, target, *reading, "-c", str(len(LINES)), "-G", group, topic)
    assert sorted(consumed.splitlines()) == sorted(LINES)


def test_metadata_names_only_gateway_addresses(kcat: str, target: Target) -> None:
    brokers = [broker["name"] for broker in json.loads(run(kcat, target, "-L", "-J"))["brokers"]]
    assert len(set(brokers)) == target.brokers
    if target.ports is not None:
        assert set(brokers) <= {f"127.0.0.1:{port}" for port in target.ports}
