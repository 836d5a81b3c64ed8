"""The ledger topic is fetched into files, each record once, from the last mark on."""

import asyncio
import gzip
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.structs import ConsumerRecord
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from gateway.events import LINE_HEADER, Event, UsageSample, from_line, to_line
from gateway.ledger_paths import partition
from gateway.reports.job.messages import only_run
from gateway.reports.job.topic import TopicError, client_options, fetch_topic, load_mark
from loadtest.scenarios.ledger.files import write_events
from loadtest.testkit.kafka import KafkaCluster
from tests.broker.topics import create_topic
from tests.weir_process import wait_until

HOUR = 3_600_000


def samples(first: int, count: int) -> Sequence[Event]:
    return [
        UsageSample(time_ms=number * HOUR // 10, gateway="weir-0", kind="fetch", amount=float(number))
        for number in range(first, first + count)
    ]


async def send(servers: str, topic: str, values: Sequence[bytes], partitions: int = 2) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for number, value in enumerate(values):
            await producer.send(topic, value, partition=number % partitions)


def lines(path: Path) -> list[str]:
    return [line for file in path.glob("date=*/hour=*/*.jsonl.gz") for line in lines_of(file)]


def lines_of(file: Path) -> list[str]:
    return gzip.decompress(file.read_bytes()).decode().splitlines()


@pytest.mark.broker
def test_new_records_are_fetched_once(kafka: KafkaCluster, tmp_path: Path) -> None:
    servers, messages = kafka.bootstrap_servers, []
    topic = create_topic(servers, f"throttles-{uuid4().hex[:8]}", partitions=2)
    asyncio.run(send(servers, topic, [to_line(event).encode() for event in samples(0, 30)]))
    assert fetch_topic(servers, topic, tmp_path, None, messages.append) == 30
    assert messages == [f"30 new records of {topic} fetched into {tmp_path}"]
    assert sorted(lines(tmp_path)) == sorted(to_line(event) for event in samples(0, 30))
    for file in tmp_path.glob("date=*/hour=*/*"):
        assert {partition(from_line(line).time_ms) for line in lines_of(file)} == {f"{file.parts[-3]}/{file.parts[-2]}"}
    asyncio.run(send(servers, topic, [to_line(event).encode() for event in samples(30, 3)] + [b"no event"]))
    assert fetch_topic(servers, topic, tmp_path, None, messages.append) == 4
    assert fetch_topic(servers, topic, tmp_path, None, messages.append) == 0
    assert sorted(lines(tmp_path)) == sorted(["no event", *(to_line(event) for event in samples(0, 33))])


@pytest.mark.broker
def test_recreated_topic_is_fetched_from_its_start(kafka: KafkaCluster, tmp_path: Path) -> None:
    servers, topic = kafka.bootstrap_servers, f"again-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})

    def make_again(count: int) -> None:
        admin.delete_topics([topic])[topic].result(30)
        wait_until(lambda: topic not in admin.list_topics().topics, "the topic is gone")
        create_topic(servers, topic, partitions=2)
        asyncio.run(send(servers, topic, [to_line(event).encode() for event in samples(0, count)]))

    create_topic(servers, topic, partitions=2)
    asyncio.run(send(servers, topic, [to_line(event).encode() for event in samples(0, 6)]))
    assert fetch_topic(servers, topic, tmp_path, None, lambda messages: None) == 6
    for count, why in ((2, "the topic ends at offset 1"), (20, "the record before it is another one")):
        make_again(count)
        with pytest.raises(TopicError, match=f"next says that offset 3 of {topic}-. comes next, but {why}"):
            fetch_topic(servers, topic, tmp_path, None, lambda messages: None)
    assert len(lines(tmp_path)) == 6


@pytest.mark.broker
def test_records_deleted_before_fetch_are_reported(kafka: KafkaCluster, tmp_path: Path) -> None:
    servers, messages = kafka.bootstrap_servers, []
    topic = create_topic(servers, f"short-{uuid4().hex[:8]}", partitions=1)
    asyncio.run(send(servers, topic, [to_line(event).encode() for event in samples(0, 4)], partitions=1))
    assert fetch_topic(servers, topic, tmp_path, None, messages.append) == 4
    asyncio.run(send(servers, topic, [to_line(event).encode() for event in samples(4, 5)], partitions=1))
    deleted = TopicPartition(topic, 0, 7)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_records([deleted])[deleted].result(30)
    assert fetch_topic(servers, topic, tmp_path, None, messages.append) == 2
    assert (
        messages[1]
        == f"3 records of {topic}-0 are lost: the topic's retention deleted them before this report could fetch them"
    )


@pytest.mark.broker
def test_missing_topic_is_explained(kafka: KafkaCluster, tmp_path: Path) -> None:
    with pytest.raises(TopicError, match=r"the topic nowhere does not exist; check `ledger\.topic`"):
        fetch_topic(kafka.bootstrap_servers, "nowhere", tmp_path, None, lambda messages: None)


def test_unreachable_brokers_are_explained(tmp_path: Path) -> None:
    with pytest.raises(TopicError, match=r"--kafka 127\.0\.0\.1:1: any can't be fetched: no broker answers; check --kafka"):
        fetch_topic("127.0.0.1:1", "any", tmp_path, None, lambda messages: None)


def test_folder_of_a_gateway_takes_no_lines_of_the_topic(tmp_path: Path) -> None:
    write_events(tmp_path, samples(0, 1))
    with pytest.raises(TopicError, match=r"weir-weir-0-.*gz, .* count twice; give --events a folder for the topic alone"):
        fetch_topic("127.0.0.1:1", "any", tmp_path, None, lambda messages: None)


def test_folder_of_another_fetch_is_refused(tmp_path: Path) -> None:
    """Both would write the same files."""
    with only_run("--events", tmp_path), pytest.raises(TopicError, match=r"--events .*: another weir report is writing"):
        fetch_topic("127.0.0.1:1", "t", tmp_path, None, print)


def test_rest_of_an_unfinished_batch_is_deleted(tmp_path: Path) -> None:
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
    (tmp_path / "_topic-a-b-0.next").write_text('{"next": 10, "last_ms": 5, "lines": {}}')
    assert load_mark(tmp_path, "a-b", 0).following == 10
    assert {file.name.removesuffix(".jsonl.gz") for file in folder.iterdir()} == {*names} - {"topic-a-b-0-000000000010"}
    assert load_mark(tmp_path, "a-b", 2).following == 0


def record(offset: int, line: str = "", value: str = '{"time_ms": 0}') -> ConsumerRecord:
    headers = ((LINE_HEADER, line.encode()),) if line else ()
    return ConsumerRecord("a", 0, offset, offset * 1000, 0, None, value.encode(), None, None, None, headers)


def test_repeated_line_is_stored_once(tmp_path: Path) -> None:
    """A later fetch also drops the repetition. Another gateway, or a restarted one, has its own sequence."""
    mark = load_mark(tmp_path, "a", 0)
    assert mark.write([record(0, "x-1", "1"), record(1, "x-2", "2"), record(2, "x-1", "1"), record(3, "y-1", "3")]) == 3
    again = load_mark(tmp_path, "a", 0)
    assert again.write([record(4, "x-2", "2"), record(5, "x-3", "4"), record(6, "", "5"), record(7, "", "5")]) == 3
    assert again.write([record(8, "x-3", "4")]) == 0
    assert sorted(lines(tmp_path)) == ["1", "2", "3", "4", "5", "5"]
    assert load_mark(tmp_path, "a", 0).following == 9


def test_records_before_the_mark_are_not_stored_again(tmp_path: Path) -> None:
    load_mark(tmp_path, "a", 0).write([record(0), record(1)])
    mark = load_mark(tmp_path, "a", 0)
    assert mark.write([record(1), record(2)]) == 1
    other = record(2, value="of another topic")
    other.timestamp = 7
    with pytest.raises(
        TopicError, match=r"_topic-a-0\.next says that offset 3 of a-0 comes next, but the record before it is another one"
    ):
        mark.write([other, record(3)])
    assert mark.following == 3


def test_deeply_nested_record_does_not_stop_the_fetch(tmp_path: Path) -> None:
    mark = load_mark(tmp_path, "a", 0)
    assert mark.write([record(0), record(1, value="[" * 100_000), record(2)]) == 3
    assert mark.following == 3


def test_damaged_mark_is_named(tmp_path: Path) -> None:
    (tmp_path / "_topic-a-0.next").write_text("17")
    with pytest.raises(TopicError, match=r"_topic-a-0\.next is not a valid mark: '17'\. Move it and the files topic-a-0-"):
        load_mark(tmp_path, "a", 0)


def test_error_of_the_disk_is_none_of_kafka(tmp_path: Path) -> None:
    mark = load_mark(tmp_path / "ledger", "a", 0)
    (tmp_path / "ledger").touch()
    says = rf"^--events {tmp_path}/ledger: the topic's lines can't be stored \(.*Not a directory.*\); free space, or name"
    with pytest.raises(TopicError, match=says):
        mark.write([record(0)])
    (tmp_path / "_topic-a-0.next").mkdir()
    with pytest.raises(TopicError, match=rf"^--events {tmp_path}: .*Is a directory"):
        load_mark(tmp_path, "a", 0)


def test_invalid_properties_are_named_once(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("nonsense")
    with pytest.raises(TopicError, match=rf"^--kafka-properties {file}: line 1: a line without a value is not supported; use"):
        fetch_topic("127.0.0.1:1", "any", tmp_path, file, lambda messages: None)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(TopicError, match=r"client\.properties: is not UTF-8 text; name a file"):
        fetch_topic("127.0.0.1:1", "any", tmp_path, file, lambda messages: None)


def test_properties_are_read(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# ours\nsecurity.protocol=SASL_PLAINTEXT\n\nsasl.mechanism = PLAIN\nsasl.username=me\nsasl.password=a=b\n")
    assert client_options(file) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password": "a=b",
    }
    file.write_text("\nsasl.jaas.config=secret")
    with pytest.raises(ValueError, match=r"^line 2: sasl\.jaas\.config is not supported; use security\.protocol,"):
        client_options(file)


@pytest.mark.parametrize("line", ["sasl.password: hunter2", "sasl.password hunter2", "sasl.password=hun\\\n  ter2"])
def test_properties_are_javas(line: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"! ours\n{line}\n")
    assert client_options(file) == {"sasl_plain_password": "hunter2"}


@pytest.mark.parametrize("line", ["hunter2", "sasl.pasword: hunter2", "sasl.pasword hunter2", "sasl.password=hunter2\\u12"])
def test_errors_in_properties_show_no_secret(line: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"security.protocol=PLAINTEXT\n{line}\n")
    with pytest.raises(TopicError, match=rf"^--kafka-properties {file}: line 2: ") as caught:
        fetch_topic("127.0.0.1:1", "any", tmp_path, file, lambda messages: None)
    assert "hunter2" not in str(caught.value)
