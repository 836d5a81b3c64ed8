"""The bytes of records of each partition in a Produce request, in little memory: Weir keeps them until the broker's answer."""

from array import array
from collections.abc import Iterable, Iterator

from protocol.bodies.produced_topics import Cut, ProducedPartition, ProducedTopic


class PartitionSizes:
    """The bytes of records for each partition of a request, except those in `cut`.

    Takes 8 bytes a partition, and for each topic 8 bytes and its key: many requests may be in flight.
    """

    __slots__ = ("_ends", "_indexes", "_key_ends", "_keys", "_sizes")

    def __init__(self, topics: Iterable[ProducedTopic] = (), cut: Cut = frozenset()) -> None:
        self._keys = bytearray()
        self._key_ends = array("i")
        self._ends = array("i")  # the number of partitions up to the end of each topic
        self._indexes = array("i")
        self._sizes = array("i")
        for number, topic in enumerate(topics):
            self._begin(topic)
            self._add([partition for position, partition in enumerate(topic.partitions) if (number, position) not in cut])

    def drain(self, topics: list[ProducedTopic]) -> None:
        """Take over the partitions that a scanner has found since the last call. It keeps its last topic, without partitions.

        The scanner's own objects have 40 times the bytes of a request.
        """
        for number, topic in enumerate(topics):
            if number > 0 or not self._ends:  # otherwise it is the last one of the call before
                self._begin(topic)
            self._add(topic.partitions)
            topic.partitions, topic.ends = [], []
        del topics[:-1]

    @property
    def kept_bytes(self) -> int:
        """The memory of the keys and the numbers."""
        return len(self._keys) + 8 * (len(self._ends) + len(self._sizes))

    def _begin(self, topic: ProducedTopic) -> None:
        self._keys += topic.key
        self._key_ends.append(len(self._keys))
        self._ends.append(len(self._sizes))

    def _add(self, partitions: Iterable[ProducedPartition]) -> None:
        """Add partitions of the last topic."""
        for partition in partitions:
            self._indexes.append(partition.partition_index)
            self._sizes.append(partition.size)
        self._ends[-1] = len(self._sizes)

    def __iter__(self) -> Iterator[tuple[bytes, int, int]]:
        """Yields the key of the topic, the partition's index, and the bytes of its records."""
        start = key_start = 0
        for key_end, end in zip(self._key_ends, self._ends, strict=True):
            key = bytes(self._keys[key_start:key_end])
            for index in range(start, end):
                yield key, self._indexes[index], self._sizes[index]
            start, key_start = end, key_end
