"""Forecasts the controller's decision on each topic of a request, and the partitions that the decision costs (KIP-599).

Source: `ControllerApis` and `ReplicationControlManager`. The controller checks the quota last, so a topic that it refuses for
another reason costs nothing.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from gateway.whole_number import whole_number
from protocol.api_keys import ApiKey
from protocol.bodies.topic_lists import NO_ID, RequestedTopic, TopicResult, is_legal_name
from protocol.bodies.topic_metadata import TopicMetadata
from protocol.error_codes import ErrorCode

_MISSING_MESSAGES: Final[Mapping[int, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.UNKNOWN_TOPIC_ID: "This server does not host this topic ID.",
}
"""Only for DeleteTopics. For CreatePartitions of an unknown topic, KRaft sends no text."""

RECENT_SECONDS: Final = 5.0
"""A confirmed change overrides the metadata of all brokers for this time, because their metadata may be older."""

CREATION_SECONDS: Final = 60.0
"""A missing topic that a broker is asked to create costs its partitions once in this time. No answer has the outcome."""

MAX_RECENT: Final = 10_000

_PARTITIONS: Final = "num.partitions"
_CREATION: Final = "auto.create.topics.enable"

BROKER_CONFIGS: Final = (_PARTITIONS, _CREATION)
"""The configs of brokers that `KnownTopics.learn_defaults` takes."""

_log = logging.getLogger("weir.mutations")

K = TypeVar("K")
V = TypeVar("V")

TopicKey = tuple[str | None, bytes]
"""The name and the id by which a request or an answer names a topic."""


class Forecast(NamedTuple):
    """`cost`: the partitions that the controller charges; 0 if it refuses the topic.

    `error`, `message`: KRaft's code and text if the present state of the topic causes the refusal. The state may change before
    the request reaches the controller. No error and no cost: the request itself is invalid and is refused in any state.
    """

    cost: int
    error: int = ErrorCode.NONE
    message: str | None = None


_INVALID: Final = Forecast(0)


class KnownTopics:
    """All connections share one object. `default_partitions` is the cluster's num.partitions; None while it is unknown.

    `created_by_brokers`: brokers create the missing topics of Metadata requests. False while that is unknown.

    `versions` returns the first and the last version that a broker offers of each API; nothing while that is unknown.
    """

    def __init__(self, versions: Callable[[], Mapping[int, tuple[int, int]]] = dict) -> None:
        self._versions = versions
        self.default_partitions: int | None = None
        self.created_by_brokers = False
        self._recent: OrderedDict[str, tuple[int, float]] = OrderedDict()  # partitions, and the time of the change
        self._names: OrderedDict[bytes, str] = OrderedDict()
        self._creations: OrderedDict[str, float] = OrderedDict()  # when the topic was charged
        self._guessed: set[str] = set()

    def learn_defaults(self, configs: Mapping[str, str]) -> None:
        """Take a broker's configs."""
        partitions = whole_number(configs.get(_PARTITIONS, ""))
        if partitions is not None:
            self.default_partitions = partitions
        self.created_by_brokers = configs.get(_CREATION) == "true"

    def offers(self, api_key: int, version: int) -> bool:
        """False if the brokers do not offer this version of an API: they close the connection, and execute nothing."""
        versions = self._versions()
        first, last = versions.get(api_key, (0, -1))
        return not versions or first <= version <= last

    def changed(self, name: str, partitions: int, now: float, topic_id: bytes | None = None) -> None:
        """Note the number of partitions that a broker has confirmed; 0 if the topic is deleted."""
        _remember(self._recent, name, (partitions, now))
        self._creations.pop(name, None)
        if topic_id is not None:
            _remember(self._names, topic_id, name)

    def recent(self, name: str, now: float) -> int | None:
        """The partitions of a topic that changed less than `RECENT_SECONDS` ago; None for all other topics."""
        partitions, changed = self._recent.get(name, (0, float("-inf")))
        return partitions if now - changed < RECENT_SECONDS else None

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of a topic that was created through this gateway; None for all other topics."""
        return self._names.get(topic_id)

    def creation_cost(self, name: str, now: float) -> int:
        """The partitions that a creation by a broker costs; 0 if they were charged less than `CREATION_SECONDS` ago."""
        if now - self._creations.get(name, float("-inf")) < CREATION_SECONDS:
            return 0
        return self.default_partitions or self.guess("num.partitions is unknown")

    def created_by_broker(self, name: str, now: float) -> None:
        """Note that a creation by a broker was charged."""
        _remember(self._creations, name, now)

    def guess(self, reason: str) -> int:
        """Assume one partition, and log this once for each `reason`."""
        if reason not in self._guessed:
            self._guessed.add(reason)
            _log.warning("%s: Weir counts one partition until a broker's answer has the number", reason)
        return 1


class Forecasts:
    """The forecasts for one request. `found`: the topics that the broker has described, by name or by id.

    `limited`: the client has a quota, so a guessed cost is logged as a warning.
    """

    __slots__ = ("_api_key", "_known", "found", "limited")

    def __init__(self, api_key: ApiKey, known: KnownTopics) -> None:
        self._api_key = api_key
        self._known = known
        self.found: dict[str | bytes, TopicMetadata] = {}
        self.limited = False

    def of_all(self, topics: Sequence[RequestedTopic], now: float) -> list[Forecast]:
        """The forecast of each topic. The controller first drops each name, and each id, that the request has twice.

        Then it refuses a name and an id that mean one topic. Weir may know the id of an older topic, so both have their cost.
        """
        keys = [key(topic) for topic in topics]
        times = Counter(keys)
        return [self.of(topic, now) if times[each] == 1 else _INVALID for topic, each in zip(topics, keys, strict=True)]

    def of(self, topic: RequestedTopic, now: float) -> Forecast:
        """The forecast of a topic that the request names once."""
        if topic.name is not None and not is_legal_name(topic.name):
            return _INVALID
        if self._api_key == ApiKey.CREATE_TOPICS:
            return self._of_creation(topic, now)
        deletes = self._api_key == ApiKey.DELETE_TOPICS
        if (topic.name is None) == (topic.topic_id == NO_ID) if deletes else topic.partitions <= 0:
            return _INVALID  # DeleteTopics needs either a name or an id
        forecasts = self._of_existing(topic, now)
        if forecasts:
            return forecasts[0]
        return Forecast(self._guess(f"the number of partitions of a {'deleted' if deletes else 'growing'} topic is unknown"))

    def unforeseen(self, topic: RequestedTopic, now: float) -> int:
        """The cost of a deletion or growth that has succeeded against its forecast: at least one partition."""
        return max([1, *(forecast.cost for forecast in self._of_existing(topic, now))])

    def name_of(self, topic: RequestedTopic) -> str | None:
        """The topic's name, if the request or the gateway's knowledge has it."""
        if topic.name is not None:
            return topic.name
        found = self.found.get(topic.topic_id)
        return (found.name if found is not None else None) or self._known.name_of(topic.topic_id)

    def _of_creation(self, topic: RequestedTopic, now: float) -> Forecast:
        assigned = topic.assignments >= 0
        if assigned:
            if topic.partitions != -1 or topic.replication_factor != -1:
                return _INVALID
        elif topic.replication_factor < -1 or topic.replication_factor == 0 or topic.partitions < -1 or topic.partitions == 0:
            return _INVALID
        if self._exists(topic.name or "", now):
            return Forecast(0, ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        if assigned:
            return Forecast(topic.assignments)
        if topic.partitions > 0:
            return Forecast(topic.partitions)
        return Forecast(self._known.default_partitions or self._guess("num.partitions is unknown"))

    def _exists(self, name: str, now: float) -> bool:
        """True if the topic exists as far as Weir knows, so that its creation would fail."""
        recent = self._known.recent(name, now)
        if recent is not None:
            return recent > 0
        found = self.found.get(name)
        # A client without the right to see a topic may still have the right to create it.
        return found is not None and found.error not in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )

    def _of_existing(self, topic: RequestedTopic, now: float) -> list[Forecast]:
        """The forecasts of a deletion or growth, one from each source that knows the topic. The most reliable source is first.

        The sources differ for a moment after a change: the broker or this gateway may not know of it yet.
        """
        name = topic.name if topic.name is not None else self._known.name_of(topic.topic_id)
        recent = None if name is None else self._known.recent(name, now)
        counts = [] if recent is None else [recent]
        found = self._described(topic)
        if found is not None:
            counts.append(found.partitions)
        return [self._of_partitions(topic, partitions) for partitions in counts]

    def _of_partitions(self, topic: RequestedTopic, partitions: int) -> Forecast:
        """The forecast of a deletion or growth of a topic with `partitions` partitions. 0: the topic does not exist."""
        if self._api_key == ApiKey.DELETE_TOPICS:
            error = self._missing(topic)
            return Forecast(partitions) if partitions > 0 else Forecast(0, error, _MISSING_MESSAGES.get(error))
        if partitions == 0:
            return Forecast(0, self._missing(topic))
        more = topic.partitions - partitions
        if more == 0:
            return Forecast(0, ErrorCode.INVALID_PARTITIONS, f"Topic already has {partitions} partition(s).")
        if more < 0:
            has = f"The topic {topic.name} currently has {partitions} partition(s)"
            return Forecast(0, ErrorCode.INVALID_PARTITIONS, f"{has}; {topic.partitions} would not be an increase.")
        if topic.assignments not in (-1, more):
            only = f"but only {topic.assignments} assignment(s) were specified."
            return Forecast(0, ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Attempted to add {more} additional partition(s), {only}")
        return Forecast(more)

    def _missing(self, topic: RequestedTopic) -> int:
        """The error code for a missing topic."""
        found = self._described(topic)
        return (found.error if found is not None else 0) or (
            ErrorCode.UNKNOWN_TOPIC_ID if topic.name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )

    def _described(self, topic: RequestedTopic) -> TopicMetadata | None:
        found = self.found.get(topic.topic_id if topic.name is None else topic.name)
        deletes = self._api_key == ApiKey.DELETE_TOPICS
        if found is not None and deletes and found.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return None  # without the right to see it, a client may delete it by a right on the cluster
        return found

    def _guess(self, reason: str) -> int:
        return self._known.guess(reason) if self.limited else 1


def _remember(memory: OrderedDict[K, V], name: K, value: V) -> None:
    """Note a value under its name, the newest last, and forget the oldest beyond `MAX_RECENT`."""
    memory[name] = value
    memory.move_to_end(name)
    if len(memory) > MAX_RECENT:
        memory.popitem(last=False)


def key(topic: RequestedTopic) -> TopicKey:
    """The key by which the controller finds duplicates in a request. An entry with both a name and an id has its own key."""
    return topic.name, topic.topic_id


def by_key(results: Iterable[TopicResult]) -> dict[TopicKey, TopicResult]:
    """The results by each key that the request may have used. A success overrides an error, because only a success costs."""
    found: dict[TopicKey, TopicResult] = {}
    for result in results:
        for names in ((result.name, NO_ID), (None, result.topic_id), (result.name, result.topic_id)):
            if result.error == ErrorCode.NONE or names not in found:
                found[names] = result
    return found
