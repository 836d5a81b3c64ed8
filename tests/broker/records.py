"""The records that the tests send, and the check that exactly these arrive."""

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
ACKS = ["0", "1", "all"]
PARTITIONS = 3


@dataclass(frozen=True)
class Record:
    """One record of a topic, as producers send it and consumers receive it."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes], ...]

    def send(self, send: Callable[..., Any], topic: str) -> Any:
        """Pass the record to the `send` of kafka-python's or aiokafka's producer, and return its result."""
        headers = list(self.headers)
        return send(topic, self.value, self.key, partition=self.partition, timestamp_ms=self.timestamp, headers=headers)


LONG_RETENTION_MS = "3600000000000"
"""A value of retention.ms above the age of `records`: brokers may delete older records at any moment."""


def records(count: int = 40) -> list[Record]:
    """Return records of unusual kinds over all partitions: null, empty, large, incompressible, with repeated headers."""
    random_bytes = random.Random(42).randbytes
    keys = [None, b"", b"key", "ключ".encode()]
    values = [b"value", None, b"", b"compressible " * 2_000, random_bytes(20_000)]
    headers: list[tuple[tuple[str, bytes], ...]] = [(), (("h", b""), ("h", b"\x00\xff"), ("заголовок", b"x" * 300))]
    # A record with neither key nor value is more than some clients can send.
    some = [kind for kind in itertools.product(keys, values, headers) if kind[:2] != (None, None)]
    return [
        Record(index % PARTITIONS, key, value, 1_700_000_000_000 + index, header)
        for index, (key, value, header) in enumerate(itertools.islice(itertools.cycle(some), count))
    ]


def assert_same(arrived: Iterable[Record], sent: Iterable[Record]) -> None:
    """Fail unless each partition holds exactly the records sent to it, in their order."""

    def by_partition(some: Iterable[Record]) -> dict[int, list[Record]]:
        return {n: [record for record in some if record.partition == n] for n in range(PARTITIONS)}

    assert by_partition(list(arrived)) == by_partition(list(sent))
