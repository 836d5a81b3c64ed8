"""Records that begin with their number (8 digits), in two partitions: the program that sends them, and their arrival."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition

PRODUCER: Final = Path(__file__).with_name("NumberedProducer.java")
PARTITIONS: Final = 2

_PATIENCE_SECONDS: Final = 60.0


def producer_arguments(
    bootstrap_servers: str, topics: str, records: int, *settings: str, size: int = 1_000, per_second: float = 0.0
) -> list[str]:
    """The arguments of `PRODUCER`. `topics` are joined with commas, `size` is in bytes; 0 `per_second`: at full speed."""
    return [bootstrap_servers, topics, str(records), str(per_second), str(size), *settings]


@dataclass(frozen=True)
class Arrived:
    """The numbers in each partition of a topic, in the order of the log."""

    partitions: list[list[int]]

    @property
    def numbers(self) -> list[int]:
        """The numbers of all partitions, sorted; a number that arrived twice is there twice."""
        return sorted(number for partition in self.partitions for number in partition)

    @property
    def in_order(self) -> bool:
        return all(partition == sorted(partition) for partition in self.partitions)

    @property
    def repeated(self) -> int:
        """The number of records that a partition has again."""
        return sum(len(partition) - len(set(partition)) for partition in self.partitions)


def arrived(bootstrap_servers: str, topic: str) -> Arrived:
    """Read a topic to its end, without aborted transactions. Raises RuntimeError if the brokers do not answer in time."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "check", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(_PATIENCE_SECONDS)
        if message is None:
            raise RuntimeError("the consumer can't read the partitions to their end")
        if message.error():
            ends += 1
        else:
            found[message.partition() or 0].append(int((message.value() or b"")[:8]))
    consumer.close()
    return Arrived(found)
