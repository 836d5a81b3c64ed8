"""CreateTopics, DeleteTopics and CreatePartitions under a controller mutation quota (KIP-599).

A topic costs its partitions. What the broker is going to refuse anyway costs nothing, as KRaft checks the quota last: so
the broker is asked for the topics' metadata first, on the client's own connection and with the client's own rights.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gateway.quotas.mutations import MutationQuota
from gateway.session.exchange import Connection, Opener
from gateway.session.exchanges.known_topics import KnownTopics
from gateway.session.inflight import Entry
from protocol.api_keys import ApiKey
from protocol.bodies import addresses, api_versions, create_partitions, create_topics, delete_topics, topic_lists
from protocol.bodies import topic_metadata as metadata
from protocol.bodies.topic_lists import NO_ID, RequestedTopic, TopicResult, TopicsRequest, TopicsResponse
from protocol.errors import InvalidFrame
from protocol.headers import RequestHeader

MAX_BYTES: Final = 1 << 20
"""The longest of these requests that a client with a quota may send: some twenty thousand topics."""

MAX_CREATED_PARTITIONS: Final = 10_000
"""`ReplicationControlManager.MAX_PARTITIONS_PER_BATCH`: more in one CreateTopics are refused before the quota is looked at."""

_UNKNOWN_TOPIC: Final = 3
_NO_ERROR: Final = 0
# CreatePartitions looks for replicas after it has charged the quota: INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT.
_CHARGED_ERRORS: Final = {ApiKey.CREATE_PARTITIONS: frozenset({38, 39})}

_Found = dict[str | bytes, metadata.TopicMetadata]
"""What the broker knows, by name or by id."""


@dataclass(frozen=True, slots=True)
class _Api:
    """The body of one of the three requests."""

    key: ApiKey
    strict_since: int
    read_request: Callable[[int, bytes, int], TopicsRequest]
    read_response: Callable[[int, bytes], TopicsResponse]
    refuse: Callable[[int, bytes, bytes, int], bytes]


_APIS: Final = {
    int(body.KEY): _Api(body.KEY, body.STRICT_SINCE, body.read_request, body.read_response, body.refuse)
    for body in (create_topics, delete_topics, create_partitions)
}


def openers(known: KnownTopics) -> dict[int, Opener]:
    """What opens each of the three requests, by API key."""
    return dict.fromkeys(_APIS, lambda connection: MutationExchange(connection, known))


@dataclass(slots=True)
class _Topic:
    """A topic of the request: what it was charged, and whether it was refused here."""

    asked: RequestedTopic
    charged: int = 0
    refused: bool = False


class MutationExchange:
    """One of these requests and its answer."""

    def __init__(self, connection: Connection, known: KnownTopics) -> None:
        self._connection = connection
        self._known = known
        self._found: _Found = {}
        self._questions: int | None = None
        self._passes = False

    def prepare(self, frame: bytes, header: RequestHeader, now: float) -> bool:
        """Ask the broker for the topics that are named; ready once it has told."""
        if self._questions is None:
            self._questions = 0
            self._begin(frame, header, now)
        return self._questions == 0

    def request(self, frame: bytes, header: RequestHeader, entry: Entry, now: float) -> bytes | None:
        """Charge each topic in the request's order, and leave out those that the quota has no room for."""
        # Looked up once more: the quotas may have changed while the broker was asked.
        self._bucket = bucket = self._connection.client.bucket("controller_mutation", now)
        if self._passes:
            return frame
        quota = MutationQuota(bucket, strict=self._version >= self._api.strict_since)
        for topic, cost in zip(self._topics, self._costs(now), strict=True):
            if cost > 0:
                topic.refused = not quota.record(cost, now)
                topic.charged = 0 if topic.refused else cost
        delay = quota.settle(now)
        if delay != 0.0:
            self._connection.throttle.start(delay, now, bucket, entry)
        kept = [topic.asked for topic in self._topics if not topic.refused]
        if len(kept) == len(self._topics):
            return frame
        self._correlation_id = header.correlation_id
        return topic_lists.keep(self._api.key, self._version, frame, self._request, kept) if kept else None

    def response(self, frame: bytes, now: float) -> bytes:
        """Settle with the broker what was charged, and put in the topics that were refused here."""
        if self._passes:
            return frame
        response = self._api.read_response(self._version, frame)
        results: dict[str | bytes, TopicResult] = {}
        for result in response.results:
            for key in (result.name, result.topic_id):
                if key is not None and key != NO_ID:
                    results.setdefault(key, result)
        self._settle(results, now)
        if not any(topic.refused for topic in self._topics):
            return frame
        merged: list[bytes] = []
        left = {result.start: result for result in response.results}
        for topic in _first_of_each(self._topics):
            if topic.refused:
                merged.append(self._refusal(topic.asked))
            elif (found := results.get(_key(topic.asked))) is not None and found.start in left:
                del left[found.start]
                merged.append(frame[found.start : found.end])
        merged += [frame[result.start : result.end] for result in left.values()]
        return topic_lists.answer_with(self._api.key, self._version, frame, response, merged)

    def answer(self, now: float) -> bytes | None:  # noqa: ARG002
        """All topics were refused."""
        refusals = [self._refusal(topic.asked) for topic in _first_of_each(self._topics)]
        return topic_lists.make_answer(self._api.key, self._version, self._correlation_id, refusals)

    # What the broker knows.

    def _begin(self, frame: bytes, header: RequestHeader, now: float) -> None:
        limited = self._connection.client.bucket("controller_mutation", now).meter is not None
        if len(frame) > MAX_BYTES:
            if limited:
                raise InvalidFrame("frame_too_large", f"{len(frame)} bytes that name topics, at most {MAX_BYTES} are opened")
            self._passes = True
            return
        self._api = _APIS[header.api_key]
        self._version = header.api_version
        self._request = self._api.read_request(header.api_version, frame, header.body_offset)
        self._topics = [_Topic(asked) for asked in self._request.topics]
        if not limited:
            return  # it is measured by what is known already, and waits for nothing
        names = {topic.asked.name for topic in self._topics if topic.asked.name is not None}
        ids = {topic.asked.topic_id for topic in self._topics if topic.asked.topic_id != NO_ID}
        if names:
            self._ask(metadata.ask_by_name(header.correlation_id, header.client_id, sorted(names)), self._take_named, now)
        if ids:
            question = api_versions.ask(header.correlation_id, header.client_id)
            self._ask(question, lambda answer, then: self._take_versions(answer, header, ids, then), now)

    def _ask(self, question: bytes, take: Callable[[bytes, float], None], now: float) -> None:
        def took(answer: bytes, then: float) -> None:
            take(answer, then)
            self._questions = (self._questions or 0) - 1
            if self._questions == 0:
                self._connection.ready()

        self._questions = (self._questions or 0) + 1
        self._connection.ask(question, took, now)

    def _take_versions(self, answer: bytes, header: RequestHeader, ids: Iterable[bytes], now: float) -> None:
        if api_versions.max_version(api_versions.ASKED, answer, ApiKey.METADATA) >= metadata.BY_ID:
            self._ask(metadata.ask_by_id(header.correlation_id, header.client_id, sorted(ids)), self._take_by_id, now)

    def _take_named(self, answer: bytes, now: float) -> None:  # noqa: ARG002
        self._found |= {topic.name: topic for topic in metadata.read_topics(metadata.BY_NAME, answer) if topic.name}

    def _take_by_id(self, answer: bytes, now: float) -> None:  # noqa: ARG002
        self._found |= {topic.topic_id: topic for topic in metadata.read_topics(metadata.BY_ID, answer)}

    # What it costs.

    def _costs(self, now: float) -> list[int]:
        """The partitions that each topic is charged; 0 where the broker is going to refuse it."""
        cost = {
            ApiKey.CREATE_TOPICS: self._cost_of_creation,
            ApiKey.DELETE_TOPICS: self._cost_of_deletion,
            ApiKey.CREATE_PARTITIONS: self._cost_of_growth,
        }[self._api.key]
        times = Counter(_key(topic.asked) for topic in self._topics)
        costs = [cost(topic.asked, now) if times[_key(topic.asked)] == 1 else 0 for topic in self._topics]
        if self._api.key == ApiKey.CREATE_TOPICS and sum(costs) > MAX_CREATED_PARTITIONS:
            return [0] * len(costs)
        return costs

    def _cost_of_creation(self, topic: RequestedTopic, now: float) -> int:
        if self._exists(topic, now):
            return 0
        if topic.assignments >= 0:
            return topic.assignments if topic.partitions == topic.replication_factor == -1 else 0
        if topic.replication_factor < -1 or topic.replication_factor == 0:
            return 0
        if topic.partitions == -1:
            return self._known.default_partitions or self._guess("num.partitions is not known")
        return max(topic.partitions, 0)

    def _exists(self, topic: RequestedTopic, now: float) -> bool:
        """Whether the broker will refuse to create it: because it is there, or because it can't be."""
        recent = self._known.recent(topic.name or "", now)
        if recent is not None:
            return recent > 0
        found = self._found.get(_key(topic))
        # Who may not see a topic may still be allowed to create it.
        return found is not None and found.error not in (_UNKNOWN_TOPIC, metadata.TOPIC_AUTHORIZATION_FAILED)

    def _cost_of_deletion(self, topic: RequestedTopic, now: float) -> int:
        if (topic.name is None) == (topic.topic_id == NO_ID):
            return 0  # both, or neither
        partitions = self._partitions(topic, now)
        return self._guess("the partitions of a topic that is deleted are not known") if partitions is None else partitions

    def _cost_of_growth(self, topic: RequestedTopic, now: float) -> int:
        partitions = self._partitions(topic, now)
        if partitions is None:
            return self._guess("the partitions of a topic that grows are not known")
        more = topic.partitions - partitions
        if partitions == 0 or more <= 0 or topic.assignments not in (-1, more):
            return 0
        return more

    def _guess(self, what: str) -> int:
        return 1 if self._bucket.meter is None else self._known.guess(what)

    def _partitions(self, topic: RequestedTopic, now: float) -> int | None:
        """How many a topic has, 0 where there is none that this client may change, None where that is not known."""
        name = topic.name if topic.name is not None else self._known.name_of(topic.topic_id)
        recent = None if name is None else self._known.recent(name, now)
        if recent is not None:
            return recent
        found = self._found.get(_key(topic))
        return None if found is None else found.partitions

    # What came of it.

    def _settle(self, results: dict[str | bytes, TopicResult], now: float) -> None:
        """Give back what the broker refused, and charge what turned out otherwise."""
        more = 0
        for topic in self._topics:
            result = results.get(_key(topic.asked))
            if topic.refused or result is None:
                continue
            more += self._worth(topic, result, now) - topic.charged
        if more:
            self._bucket.record(more, now)
        if more < 0:
            self._connection.throttle.reconsider(now)

    def _worth(self, topic: _Topic, result: TopicResult, now: float) -> int:
        """What the broker's controller would have charged for what came of a topic."""
        asked, key = topic.asked, self._api.key
        if result.error != _NO_ERROR:
            return topic.charged if result.error in _CHARGED_ERRORS.get(key, ()) else 0
        name = asked.name or result.name or self._known.name_of(asked.topic_id)
        if key == ApiKey.DELETE_TOPICS:
            if name is not None:
                self._known.changed(name, 0, now)
            return topic.charged
        worth = topic.charged
        if key == ApiKey.CREATE_TOPICS:
            if result.partitions > 0:
                worth = result.partitions
                if asked.partitions == -1 and asked.assignments < 0:
                    self._known.default_partitions = worth
            worth = worth or max(asked.partitions, asked.assignments, 1)
        if name is not None and not self._request.validate_only:
            partitions = worth if key == ApiKey.CREATE_TOPICS else asked.partitions
            self._known.changed(name, partitions, now, result.topic_id)
        return worth

    def _refusal(self, topic: RequestedTopic) -> bytes:
        """The result of a topic that was refused here, with the name of one that is named by its id, as a broker has it."""
        name_field = topic.name_field
        if topic.name is None:
            found = self._found.get(topic.topic_id)
            name = (found.name if found is not None else None) or self._known.name_of(topic.topic_id)
            if name is not None:
                name_field = addresses.encode_string(name, compact=True)
        return self._api.refuse(self._version, name_field, topic.topic_id, topic_lists.THROTTLING_QUOTA_EXCEEDED)


def _key(topic: RequestedTopic) -> str | bytes:
    return topic.topic_id if topic.name is None else topic.name


def _first_of_each(topics: Iterable[_Topic]) -> list[_Topic]:
    """The topics without those that are named a second time."""
    first: dict[str | bytes, _Topic] = {}
    for topic in topics:
        first.setdefault(_key(topic.asked), topic)
    return list(first.values())
