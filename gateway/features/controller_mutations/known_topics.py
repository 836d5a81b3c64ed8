"""Remembers recent changes of topics, because not every broker knows them at once."""

import logging
from collections import OrderedDict
from typing import Final

RECENT_SECONDS: Final = 5.0
"""A confirmed change overrides the metadata of all brokers for this time, because their metadata may be older."""

MAX_RECENT: Final = 10_000

_log = logging.getLogger("weir.mutations")


class KnownTopics:
    """All connections share one object. `default_partitions` is the cluster's num.partitions; None while it is unknown."""

    def __init__(self) -> None:
        self.default_partitions: int | None = None
        self._recent: OrderedDict[str, tuple[int, float]] = OrderedDict()  # partitions, and the time of the change
        self._names: OrderedDict[bytes, str] = OrderedDict()
        self._guessed: set[str] = set()

    def learn_default(self, partitions: int) -> None:
        self.default_partitions = partitions

    def changed(self, name: str, partitions: int, now: float, topic_id: bytes | None = None) -> None:
        """Note the number of partitions that a broker has confirmed; 0 if the topic is deleted."""
        self._recent[name] = partitions, now
        self._recent.move_to_end(name)
        if topic_id is not None:
            self._names[topic_id] = name
            self._names.move_to_end(topic_id)
        for memory in (self._recent, self._names):
            if len(memory) > MAX_RECENT:
                memory.popitem(last=False)

    def recent(self, name: str, now: float) -> int | None:
        """The partitions of a topic that changed less than `RECENT_SECONDS` ago; None for all other topics."""
        partitions, changed = self._recent.get(name, (0, float("-inf")))
        return partitions if now - changed < RECENT_SECONDS else None

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of a topic that was created through this gateway; None for all other topics."""
        return self._names.get(topic_id)

    def guess(self, reason: str) -> int:
        """Assume one partition, and log this once for each `reason`."""
        if reason not in self._guessed:
            self._guessed.add(reason)
            _log.warning("%s: Weir counts one partition until a broker's answer has the number", reason)
        return 1
