"""CreateTopics, DeleteTopics and CreatePartitions under a controller mutation quota (KIP-599).

A topic costs its partitions. A topic that the broker refuses anyway costs nothing, because KRaft checks the quota last. So Weir
first asks the broker for the topics' metadata, on the client's own connection and with the client's own rights.

While the bucket is in debt, Weir forwards no topic that might cost something: Weir refuses a strict request and defers a
permissive request. During this time Weir also refuses topics that fail according to the metadata, because the metadata may be
out of date.

A forwarded topic reserves its forecast cost, and the broker's answer decides about the charge. Reservations only make other
requests wait. They refuse no topic of another request, mute no client, and peers never hear of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.features.controller_mutations.costs import Forecast, Forecasts, KnownTopics, TopicKey, by_key, key
from gateway.features.controller_mutations.rules import MutationQuota
from gateway.features.controller_mutations.turns import Place
from gateway.features.controller_mutations.under_way import Reservation, UnderWay, WaitingRequest
from gateway.proxy.collected import KeptBytes
from gateway.proxy.handler import (
    COLLECT,
    DEFER,
    FORWARD,
    MAX_COLLECTED_REQUEST_BYTES,
    MAX_UNTRUSTED_BYTES,
    WAIT,
    Answer,
    Connection,
    HandlerFactory,
    Replace,
    Request,
    Verdict,
    check_size,
)
from gateway.proxy.lookups import Lookups
from gateway.quotas.bucket import Bucket
from gateway.quotas.kinds.controller_mutation import KIND
from gateway.quotas.shadows import ShadowBucket
from protocol.api_keys import ApiKey
from protocol.bodies import api_versions, topic_lists
from protocol.bodies import topic_metadata as metadata
from protocol.bodies.topic_lists import NO_ID, RequestedTopic, TopicResult, is_legal_name
from protocol.encoding import encode_string
from protocol.error_codes import ErrorCode
from protocol.headers import RequestHeader

MAX_CREATED_PARTITIONS: Final = 10_000
"""`ReplicationControlManager.MAX_PARTITIONS_PER_BATCH`. The controller drops the topics that the client may not create. Then it
refuses a longer CreateTopics before it checks the quota."""

TOPIC_BYTES: Final = 350
"""The memory of one topic of a request, until the broker's answer. All of them may have 80 times the bytes of the request."""

_KIND: Final = KIND.name
# CreatePartitions charges the quota before it places replicas. If a request adds more than 10 000 partitions, KRaft creates the
# first 10 000. The topic with the others gets UNKNOWN_SERVER_ERROR.
_LATE_ERRORS: Final = frozenset(
    {ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.UNKNOWN_SERVER_ERROR}
)
_CHARGED_ERRORS: Final = {ApiKey.CREATE_PARTITIONS: _LATE_ERRORS}


def handler_factories(known: KnownTopics, under_way: UnderWay | None = None) -> dict[int, HandlerFactory]:
    """Connections that share buckets have to share `under_way`."""
    shared = under_way or UnderWay()
    return dict.fromkeys(topic_lists.TOPICS_APIS, lambda connection: MutationHandler(connection, known, shared))


@dataclass(slots=True)
class _Topic:
    """A topic of the request. `cost` are its partitions by the forecast; `error` and `message` are Weir's own answer."""

    requested: RequestedTopic
    cost: int = 0
    error: int = ErrorCode.NONE
    message: str | None = None


class MutationHandler:
    """Handles one request and its answer."""

    def __init__(self, connection: Connection, known: KnownTopics, under_way: UnderWay) -> None:
        self._connection = connection
        self._known = known
        self._under_way = under_way
        self._lookups: Lookups | None = None  # None until the request is read
        self._waiting = WaitingRequest(connection, under_way)
        self._reservation: Reservation | None = None
        self._quota: MutationQuota | None = None  # None once the forwarded topics are charged
        self._kept_bytes = KeptBytes(connection.keep)

    def handle(self, request: Request, now: float) -> Verdict:
        """Ask the broker for the requested topics, and decide after its answer."""
        self._connection.client.use(request.header.client_id, now)
        if self._lookups is None:
            if self._place.deferred:
                return self._look_again(request, now)
            if not self._limited(now):
                if request.frame_bytes > MAX_UNTRUSTED_BYTES:
                    return FORWARD
            else:
                check_size(request.frame_bytes, MAX_COLLECTED_REQUEST_BYTES, "send the topics in several requests")
            if not request.whole:
                return COLLECT
            if self._connection.waits_for_answers(now):
                return DEFER
            self._lookups = Lookups(self._connection)
            self._begin(*request.cut(), self._lookups, now)
        if self._lookups.pending:
            return WAIT
        return self._decide(request, now)

    @property
    def _place(self) -> Place:
        return self._under_way.place(self._connection)

    def _look_again(self, request: Request, now: float) -> Verdict:
        """Decide on a request that was deferred, and costs one partition at least. Read it only if its turn has come."""
        self._key = ApiKey(request.header.api_key)
        self._buckets = self._connection.client.buckets(_KIND, now)
        quota = MutationQuota(self._buckets, self._place, strict=False)
        quota.admit(1, now)
        return self._waiting.decide(quota.awaited, (), lambda: self._defer(quota, now) or self._look(request, now))

    def _look(self, request: Request, now: float) -> Verdict:
        self._place.deferred = False
        return self.handle(request, now)

    def _decide(self, request: Request, now: float) -> Verdict:
        """Wait for the outcome of other requests if the decision depends on it."""
        # The quotas may have changed while Weir waited, so it looks up the bucket again.
        self._buckets = self._connection.client.buckets(_KIND, now)
        self._forecasts.limited = have_limits(self._buckets)
        forecasts = self._forecasts.of_all(self._request.topics, now)
        quota = MutationQuota(self._buckets, self._place, strict=self._version >= self._strict_since)
        depends = self._admit(quota, forecasts, now)
        queue = self._buckets if depends and quota.limits else ()
        return self._waiting.decide(quota.awaited, queue, lambda: self._defer(quota, now) or self._forward(quota, request, now))

    def _defer(self, quota: MutationQuota, now: float) -> Verdict | None:
        """Mute the client before its request if the bucket is in debt, or other requests are first.

        Weir never refuses a topic of a permissive request, and mutes only the connection that overdraws the bucket. Without the
        deferral, a client could exceed the quota by one request on each of many connections.
        """
        if not quota.late:
            return None
        self._connection.throttle.defer(quota.refuse(now), now, quota.binding, int(self._key))
        self._place.deferred = True
        self._kept_bytes.are(0)
        return DEFER

    def _forward(self, quota: MutationQuota, request: Request, now: float) -> Verdict:
        """Forward the admitted topics, or answer the request if there is none."""
        frame, header = request.cut()
        kept = [topic.requested for topic in self._topics if topic.error == ErrorCode.NONE]
        if not kept and self._topics:
            verdict = quota.settle(now)
            if verdict[0] > 0.0:
                self._connection.throttle.start(verdict, now, quota.binding, request.entry)
            refusals = [self._refusal(topic) for topic in _first_of_each(self._topics)]
            self._kept_bytes.are(0)
            return Answer(topic_lists.make_answer(self._key, self._version, header.correlation_id, refusals))
        self._quota = quota
        quota.begin_turn(now)
        if quota.limits and quota.reserved > 0:
            self._reservation = self._under_way.reserve(self._buckets, quota.reserved, self.lose, now)
        # As in Kafka, the client's next request waits for the answer, since the answer may mute the client. Otherwise a client
        # that reads nothing could keep Weir from reading this answer, and delay the outcome for other clients. Without a quota,
        # a client that pipelines could have Weir keep the topics of a thousand requests.
        self._connection.throttle.hold(request.entry, now)
        request.intercept(self, lose=self.lose)
        if len(kept) == len(self._topics):
            return FORWARD
        return Replace(topic_lists.keep(self._key, self._version, frame, self._request, kept))

    def response(self, frame: bytes, now: float) -> bytes:
        """Charge the topics by the broker's results, and add Weir's own results."""
        self._kept_bytes.are(0)
        response = topic_lists.read_response(self._key, self._version, frame)
        results = by_key(response.results)
        self._settle(results, now)
        if all(topic.error == ErrorCode.NONE for topic in self._topics):
            return frame
        merged: list[bytes] = []
        left = {result.start: result for result in response.results}
        for topic in _first_of_each(self._topics):
            if topic.error != ErrorCode.NONE:
                merged.append(self._refusal(topic))
            elif (found := results.get(key(topic.requested))) is not None and found.start in left:
                del left[found.start]
                merged.append(frame[found.start : found.end])
        merged += [frame[result.start : result.end] for result in left.values()]
        return topic_lists.answer_with(self._key, self._version, frame, response.start, response.end, merged)

    def lose(self, now: float) -> None:
        """Charge the forecast: nobody will learn the outcome. A later answer changes nothing."""
        self._settle({}, now, MAX_CREATED_PARTITIONS if self._known.offers(self._key, self._version) else 0)

    def _limited(self, now: float) -> bool:
        return have_limits(self._connection.client.buckets(_KIND, now))

    # The broker's metadata.

    def _begin(self, frame: bytes, header: RequestHeader, lookups: Lookups, now: float) -> None:
        self._key = ApiKey(header.api_key)
        self._strict_since = topic_lists.TOPICS_APIS[self._key].strict_since
        self._version = header.api_version
        self._request = topic_lists.read_request(self._key, header.api_version, frame, header.body_offset)
        self._topics = [_Topic(requested) for requested in self._request.topics]
        self._kept_bytes.are(TOPIC_BYTES * len(self._topics))
        self._forecasts = Forecasts(self._key, self._known)
        if not self._limited(now):
            return  # without a limit, the metadata known already are enough to measure the request
        names = {topic.name for topic in self._request.topics if topic.name is not None and is_legal_name(topic.name)}
        ids = {topic.topic_id for topic in self._request.topics if topic.topic_id != NO_ID}
        for request in metadata.ask_by_name(header.correlation_id, header.client_id, names):
            lookups.send(request, self._take_named, now)
        if ids:
            request = api_versions.ask(header.correlation_id, header.client_id)
            lookups.send(request, lambda answer, then: self._take_versions(answer, header, ids, lookups, then), now)

    def _take_versions(self, answer: bytes, header: RequestHeader, ids: Iterable[bytes], lookups: Lookups, now: float) -> None:
        if api_versions.max_version(api_versions.ASKED, answer, ApiKey.METADATA) >= metadata.BY_ID:
            for request in metadata.ask_by_id(header.correlation_id, header.client_id, ids):
                lookups.send(request, self._take_by_id, now)

    def _take_named(self, answer: bytes, now: float) -> None:  # noqa: ARG002
        self._forecasts.found |= {topic.name: topic for topic in metadata.read_topics(metadata.BY_NAME, answer) if topic.name}

    def _take_by_id(self, answer: bytes, now: float) -> None:  # noqa: ARG002
        self._forecasts.found |= {topic.topic_id: topic for topic in metadata.read_topics(metadata.BY_ID, answer)}

    # The charge.

    def _admit(self, quota: MutationQuota, forecasts: Sequence[Forecast], now: float) -> bool:
        """Admit each topic in the request's order, or set the error of Weir's own answer.

        Returns True if the outcome of other requests may change the decision. `quota.awaited` is the bucket if it does.
        """
        # The controller refuses a longer request as a whole, or creates some of its topics. So Weir admits the request as one
        # operation and forwards it whole.
        whole = self._key == ApiKey.CREATE_TOPICS and sum(forecast.cost for forecast in forecasts) > MAX_CREATED_PARTITIONS
        admitted = not whole or quota.admit(MAX_CREATED_PARTITIONS, now)
        depends = False
        for topic, forecast in zip(self._topics, forecasts, strict=True):
            topic.cost, topic.error, topic.message = 0, ErrorCode.NONE, None
            if forecast.cost > 0:
                admitted = admitted if whole else quota.admit(forecast.cost, now)
                topic.cost = forecast.cost if admitted else 0
                topic.error = ErrorCode.NONE if admitted else ErrorCode.THROTTLING_QUOTA_EXCEEDED
                depends = True
            elif forecast.error != ErrorCode.NONE:
                if quota.in_debt(now):
                    topic.error, topic.message = forecast.error, forecast.message
                depends = True
        return depends

    # The outcome.

    def _settle(self, results: dict[TopicKey, TopicResult], now: float, unknown: int = MAX_CREATED_PARTITIONS) -> None:
        """Charge the forwarded topics, and mute the client if they were too much. A second call does nothing.

        `unknown`: the most partitions of topics without a result. A client may claim any number.
        """
        quota, self._quota = self._quota, None
        if quota is None:
            return
        if self._reservation is not None:
            self._under_way.release(self._reservation)
            self._reservation = None
        paid: dict[int, int] = {}  # by the offset of the result: entries by name and by id may find the same one
        for topic in self._topics:
            if topic.error != ErrorCode.NONE:
                continue
            result = results.get(key(topic.requested))
            if result is None or result.error == ErrorCode.REQUEST_TIMED_OUT:
                # The controller may still do the work. With ZooKeeper it answers so at once if timeout_ms is 0.
                worth = min(topic.cost, unknown)
                unknown -= worth
            else:
                before = paid.get(result.start, 0)
                worth = max(self._worth(topic, result, now) - before, 0)
                paid[result.start] = before + worth
            if worth > 0:
                quota.charge(worth, now)
        verdict = quota.settle(now)
        if verdict[0] > 0.0 and not self._connection.closed:
            self._connection.throttle.defer(verdict, now, quota.binding, int(self._key))

    def _worth(self, topic: _Topic, result: TopicResult, now: float) -> int:
        """The partitions that the broker itself charges for the result of a topic."""
        requested, api_key = topic.requested, self._key
        if result.error != ErrorCode.NONE:
            return topic.cost if result.error in _CHARGED_ERRORS.get(api_key, ()) else 0
        name = requested.name or result.name or self._known.name_of(requested.topic_id)
        if api_key == ApiKey.DELETE_TOPICS:
            worth = topic.cost or self._forecasts.unforeseen(requested, now)
            if name is not None:
                self._known.changed(name, 0, now)
            return worth
        if api_key == ApiKey.CREATE_TOPICS:
            worth = topic.cost
            if result.partitions > 0:
                worth = result.partitions
                if requested.partitions == -1 and requested.assignments < 0:
                    self._known.default_partitions = worth
            worth = partitions = worth or max(requested.partitions, requested.assignments, 1)
        else:
            worth = topic.cost or self._forecasts.unforeseen(requested, now)
            partitions = requested.partitions
        if name is not None and not self._request.validate_only:
            self._known.changed(name, partitions, now, result.topic_id)
        return worth

    def _refusal(self, topic: _Topic) -> bytes:
        """Weir's own result for a topic. As in a broker's answer, a topic that is requested by id gets its name as well."""
        requested = topic.requested
        if requested.name is None and (name := self._forecasts.name_of(requested)) is not None:
            requested = requested._replace(name_field=encode_string(name, compact=True))
        return topic_lists.refuse(self._key, self._version, requested, topic.error, topic.message)


def have_limits(buckets: Iterable[Bucket]) -> bool:
    """Shadow limits alone are no reason to ask the broker: its results correct their charge afterwards."""
    return any(bucket.meter is not None and not isinstance(bucket, ShadowBucket) for bucket in buckets)


def _first_of_each(topics: Iterable[_Topic]) -> list[_Topic]:
    first: dict[TopicKey, _Topic] = {}
    for topic in topics:
        first.setdefault(key(topic.requested), topic)
    return list(first.values())
