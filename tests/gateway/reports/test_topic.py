"""The ledger's topic, fetched into files: everything once, wherever it stopped before."""

import asyncio
import gzip
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer

from gateway.events import Event, UsageSample, from_line, partition, to_line
from gateway.reports.job.topic import TopicError, client_options, fetch_topic, next_offset
from loadtest.kafka import KafkaCluster
from tests.broker.topics import create_topic

HOUR = 3_600_000


def samples(first: int, count: int) -> Sequence[Event]:
    return [
        UsageSample(time_ms=number * HOUR // 10, gateway="weir-0", kind="fetch", amount=float(number))
        for number in range(first, first + count)
    ]


async def send(servers: str, topic: str, values: Sequence[bytes]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for number, value in enumerate(values):
            await producer.send(topic, value, partition=number % 2)


def lines(path: Path) -> list[str]:
    return [line for file in path.glob("date=*/hour=*/*.jsonl.gz") for line in lines_of(file)]


def lines_of(file: Path) -> list[str]:
    return gzip.decompress(file.read_bytes()).decode().splitlines()


@pytest.mark.broker
def test_what_is_new_is_fetched_once(kafka: KafkaCluster, tmp_path: Path) -> None:
    servers, told = kafka.bootstrap_servers, []
    topic = create_topic(servers, f"throttles-{uuid4().hex[:8]}", partitions=2)
    asyncio.run(send(servers, topic, [to_line(event).encode() for event in samples(0, 30)]))
    assert fetch_topic(servers, topic, tmp_path, None, told.append) == 30
    assert told == [f"30 new records of {topic} fetched into {tmp_path}"]
    assert sorted(lines(tmp_path)) == sorted(to_line(event) for event in samples(0, 30))
    for file in tmp_path.glob("date=*/hour=*/*"):
        assert {partition(from_line(line).time_ms) for line in lines_of(file)} == {f"{file.parts[-3]}/{file.parts[-2]}"}
    asyncio.run(send(servers, topic, [to_line(event).encode() for event in samples(30, 3)] + [b"no event"]))
    assert fetch_topic(servers, topic, tmp_path, None, told.append) == 4
    assert fetch_topic(servers, topic, tmp_path, None, told.append) == 0
    assert sorted(lines(tmp_path)) == sorted(["no event", *(to_line(event) for event in samples(0, 33))])


@pytest.mark.broker
def test_a_topic_that_is_not_there(kafka: KafkaCluster, tmp_path: Path) -> None:
    with pytest.raises(TopicError, match=r"there is no topic nowhere; is `ledger\.topic` set"):
        fetch_topic(kafka.bootstrap_servers, "nowhere", tmp_path, None, lambda told: None)


def test_brokers_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(TopicError, match=r"--kafka 127\.0\.0\.1:1: any can't be fetched"):
        fetch_topic("127.0.0.1:1", "any", tmp_path, None, lambda told: None)


def test_what_an_unfinished_batch_has_left_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "date=2026-11-21/hour=03"
    folder.mkdir(parents=True)
    names = [
        "topic-a-b-0-000000000000",
        "topic-a-b-0-000000000010",
        "topic-a-b-1-000000000010",
        "topic-a-0-000000000010",
        "weir-0",
    ]
    for name in names:
        (folder / f"{name}.jsonl.gz").touch()
    (tmp_path / "_topic-a-b-0.next").write_text("10")
    assert next_offset(tmp_path, "a-b", 0) == 10
    assert {file.name.removesuffix(".jsonl.gz") for file in folder.iterdir()} == {*names} - {"topic-a-b-0-000000000010"}
    assert next_offset(tmp_path, "a-b", 2) == 0


def test_properties(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# ours\nsecurity.protocol=SASL_PLAINTEXT\n\nsasl.mechanism = PLAIN\nsasl.username=me\nsasl.password=a=b\n")
    assert client_options(file) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password": "a=b",
    }
    file.write_text("sasl.jaas.config=secret")
    with pytest.raises(ValueError, match=r"client\.properties:1: sasl\.jaas\.config is none of security\.protocol,"):
        client_options(file)
