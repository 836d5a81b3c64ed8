"""Recent changes of topics that this gateway has seen, and that not every broker may know yet."""

import logging
from collections import OrderedDict
from typing import Final, NamedTuple

RECENT_SECONDS: Final = 5.0
"""For this time a change that a broker has confirmed overrides the metadata of other brokers, which may be older."""

MAX_RECENT: Final = 10_000

_log = logging.getLogger("weir.mutations")


class KnownTopic(NamedTuple):
    """A topic and its number of partitions; 0 if the topic is deleted."""

    name: str
    partitions: int
    since: float


class KnownTopics:
    """All connections share one object. `default_partitions` is the cluster's num.partitions; None while it is unknown."""

    def __init__(self) -> None:
        self.default_partitions: int | None = None
        self._recent: OrderedDict[str, KnownTopic] = OrderedDict()
        self._names: OrderedDict[bytes, str] = OrderedDict()
        self._guessed: set[str] = set()

    def learn_default(self, partitions: int) -> None:
        self.default_partitions = partitions

    def changed(self, name: str, partitions: int, now: float, topic_id: bytes | None = None) -> None:
        """Note the number of partitions that a broker has confirmed; 0 if the topic is deleted."""
        self._recent[name] = KnownTopic(name, partitions, now)
        self._recent.move_to_end(name)
        if topic_id is not None:
            self._names[topic_id] = name
            self._names.move_to_end(topic_id)
        for memory in (self._recent, self._names):
            if len(memory) > MAX_RECENT:
                memory.popitem(last=False)

    def recent(self, name: str, now: float) -> int | None:
        """The partitions of a topic that changed less than `RECENT_SECONDS` ago; None for all other topics."""
        known = self._recent.get(name)
        return known.partitions if known is not None and now - known.since < RECENT_SECONDS else None

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of a topic that was created through this gateway; None for all other topics."""
        return self._names.get(topic_id)

    def guess(self, reason: str) -> int:
        """Assume one partition, and log this once for each `reason`."""
        if reason not in self._guessed:
            self._guessed.add(reason)
            _log.warning("%s: Weir counts one partition until a broker's answer has the number", reason)
        return 1
