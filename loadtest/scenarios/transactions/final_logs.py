"""Ends all transactions of a run, and reads the logs at the brokers."""

import time
from collections.abc import Iterable, Iterator
from typing import Final

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from loadtest.scenarios.transactions.clients import Names, name_of, record_of
from loadtest.scenarios.transactions.history import Entry, GroupOffset, Log

_PATIENCE_SECONDS: Final = 60.0


def end_transactions(servers: str, transactional_ids: Iterable[str]) -> None:
    """Start a producer for each id: its coordinator then ends the transaction that is left. Raises KafkaException."""
    for name in transactional_ids:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "log_level": 0})
        while True:
            try:
                producer.init_transactions(_PATIENCE_SECONDS)
                break
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise


def final_entries(servers: str, names: Names) -> Iterator[Entry]:
    """The log of each partition and the offsets of the group. Raises KafkaException, `TimeoutError`."""
    ends = _ends(servers, names, IsolationLevel.READ_UNCOMMITTED)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (stable := _ends(servers, names, IsolationLevel.READ_COMMITTED)) != ends and time.monotonic() < deadline:
        time.sleep(0.5)
        ends = _ends(servers, names, IsolationLevel.READ_UNCOMMITTED)
    committed = _read(servers, names, "read_committed")
    everything = _read(servers, names, "read_uncommitted")
    for name, end in ends.items():
        yield Log(name, tuple(committed[name]), tuple(everything[name]), stable[name], end)
    yield from _group_offsets(servers, names)


def _ends(servers: str, names: Names, isolation: IsolationLevel) -> dict[str, int]:
    admin = AdminClient({"bootstrap.servers": servers})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(each.topic, each.partition): latest for each in names.partitions()}
    futures = admin.list_offsets(wanted, isolation_level=isolation)
    return {name_of(each.topic, each.partition): future.result(_PATIENCE_SECONDS).offset for each, future in futures.items()}


def _read(servers: str, names: Names, isolation: str) -> dict[str, list[tuple[int, str]]]:
    settings = {"group.id": "final", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": servers, "isolation.level": isolation, **settings})
    consumer.assign(names.partitions())
    found: dict[str, list[tuple[int, str]]] = {name_of(each.topic, each.partition): [] for each in names.partitions()}
    unfinished = set(found)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while unfinished:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the brokers do not let {', '.join(sorted(unfinished))} be read to the end")
        for message in consumer.consume(500, timeout=0.2):
            error = message.error()
            if error is None:
                name, offset, value = record_of(message)
                found[name].append((offset, value))
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(name_of(message.topic() or "", message.partition() or 0))
    consumer.close()
    return found


def _group_offsets(servers: str, names: Names) -> Iterator[GroupOffset]:
    admin = AdminClient({"bootstrap.servers": servers})
    wanted = [TopicPartition(each.topic, each.partition) for each in names.partitions() if each.topic == names.source]
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(names.group, wanted)]).values()
    for each in future.result(_PATIENCE_SECONDS).topic_partitions or ():
        yield GroupOffset(name_of(each.topic, each.partition), max(each.offset, 0))
