"""Metadata under a controller mutation quota (KIP-599): brokers create the missing topics of such a request.

Source: `AutoTopicCreationManager`. The broker sends the controller a CreateTopics in the client's name, so the strict quota
holds. A topic over the quota stays missing, and the client asks again. Before v4, a request cannot forbid the creation, so Weir
defers it while the bucket is in debt.

Weir first asks for the requested topics itself, on the client's own connection and with the client's own rights. It then asks
the broker to create those that are missing and admitted, and takes the permission from the client's request. The answer to Weir
decides about the charge. A topic that the controller creates is still missing there.
"""

from collections.abc import Callable, Iterable
from typing import Final

from gateway.features.controller_mutations.costs import KnownTopics
from gateway.features.controller_mutations.handlers import have_limits
from gateway.features.controller_mutations.rules import MutationQuota
from gateway.features.controller_mutations.under_way import Reservation, UnderWay, WaitingRequest
from gateway.proxy.collected import KeptBytes
from gateway.proxy.handler import (
    COLLECT,
    DEFER,
    FORWARD,
    MAX_COLLECTED_REQUEST_BYTES,
    WAIT,
    Connection,
    HandlerFactory,
    Replace,
    Request,
    Verdict,
    check_size,
)
from gateway.proxy.lookups import Lookups
from gateway.quotas.kinds.controller_mutation import KIND
from protocol.api_keys import ApiKey
from protocol.bodies import metadata_request, topic_metadata
from protocol.bodies.metadata_request import MetadataRequest
from protocol.bodies.topic_lists import is_legal_name
from protocol.bodies.topic_metadata import TopicMetadata
from protocol.cursor import MAX_ELEMENTS
from protocol.error_codes import ErrorCode
from protocol.errors import InvalidFrame
from protocol.headers import RequestHeader

NAME_BYTES: Final = 100
"""The memory of one requested topic, until Weir's own requests are answered."""

_KIND: Final = KIND.name
_REMEDY: Final = "ask for the topics in several requests"
_CREATED: Final = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE})
"""Errors for a topic that the broker has asked the controller for: KRaft's and ZooKeeper's. Redpanda waits, and has none."""


def metadata_factory(known: KnownTopics, under_way: UnderWay) -> HandlerFactory:
    """Requests need no handler while brokers create no topics."""
    return lambda connection: MetadataHandler(connection, known, under_way) if known.created_by_brokers else None


class MetadataHandler:
    """Handles one request."""

    def __init__(self, connection: Connection, known: KnownTopics, under_way: UnderWay) -> None:
        self._connection = connection
        self._known = known
        self._under_way = under_way
        self._request: MetadataRequest | None = None
        self._lookups = Lookups(connection)
        self._waiting = WaitingRequest(connection, under_way)
        self._missing: list[str] = []
        self._quota: MutationQuota | None = None
        self._reservation: Reservation | None = None
        self._costs: dict[str, int] = {}  # of the creations without an answer
        self._kept_bytes = KeptBytes(connection.keep)

    def handle(self, request: Request, now: float) -> Verdict:
        """Ask the broker for the requested topics, let it create those that the quota admits, and forward the request."""
        client, header = self._connection.client, request.header
        client.use(header.client_id, now)
        if self._request is None:
            if not have_limits(client.limited_buckets(_KIND, now)):
                return FORWARD
            check_size(request.frame_bytes, MAX_COLLECTED_REQUEST_BYTES, _REMEDY)
            if not request.whole:
                return COLLECT
            if self._connection.waits_for_answers(now):
                return DEFER
            frame, moved = request.cut()
            self._request = metadata_request.read_request(header.api_version, frame, moved.body_offset)
            self._kept_bytes.are(NAME_BYTES * len(self._request.names or ()))
            self._look_up(self._request, header, now)
        if self._lookups.pending:
            return WAIT
        if self._missing and self._quota is None:
            return self._decide(self._request, request, now)
        return self._forward(self._request, request, now)

    def _look_up(self, request: MetadataRequest, header: RequestHeader, now: float) -> None:
        if request.names is None and request.permission < 0:
            raise InvalidFrame("too_many_elements", f"a Metadata request for more than {MAX_ELEMENTS} topics: {_REMEDY}")
        if request.creates and request.names:
            self._ask(header, filter(is_legal_name, request.names), self._find, now, create=False)

    def _decide(self, request: MetadataRequest, whole: Request, now: float) -> Verdict:
        """Wait for the outcome of other requests if the decision depends on it."""
        # The quotas may have changed while Weir waited, so it looks up the buckets again.
        buckets = self._connection.client.buckets(_KIND, now)
        quota = MutationQuota(buckets, self._under_way.place(self._connection), strict=request.permission >= 0)
        costs = {name: self._known.creation_cost(name, now) for name in self._missing}
        admitted = {name: cost for name, cost in costs.items() if quota.admit(cost, now)}

        def go_on() -> Verdict:
            if quota.late:
                self._connection.throttle.defer(quota.refuse(now), now, quota.binding, ApiKey.METADATA)
                self._kept_bytes.are(0)
                return DEFER
            self._quota = quota
            quota.begin_turn(now)
            quota.take_turns(now)  # for the topics that are not admitted: the client asks for them again
            if not admitted:
                return self._forward(request, whole, now)
            self._costs = {name: cost for name, cost in admitted.items() if cost > 0}
            self._reservation = self._under_way.reserve(buckets, quota.reserved, self._lose, now)
            self._ask(whole.header, list(admitted), self._charge, now, create=True)
            return WAIT

        return self._waiting.decide(quota.awaited, buckets if quota.limits else (), go_on)

    def _forward(self, request: MetadataRequest, whole: Request, now: float) -> Verdict:
        """Forward the request, from v4 on without the permission to create topics."""
        self._kept_bytes.are(0)
        if request.permission >= 0 and request.creates:
            return Replace(metadata_request.without_creation(whole.cut()[0], request))
        if request.permission < 0 and self._quota is not None:
            verdict = self._quota.settle(now)
            if verdict[0] > 0.0:
                self._connection.throttle.start(verdict, now, self._quota.binding, whole.entry)
        return FORWARD

    # The broker's answers.

    def _ask(
        self, header: RequestHeader, names: Iterable[str], take: Callable[[list[TopicMetadata], float], None], now: float,
        *, create: bool
    ) -> None:  # fmt: skip
        def took(answer: bytes, then: float) -> None:
            take(topic_metadata.read_topics(topic_metadata.BY_NAME, answer), then)

        for request in topic_metadata.ask_by_name(header.correlation_id, header.client_id, names, create=create):
            self._lookups.send(request, took, now)

    def _find(self, topics: list[TopicMetadata], now: float) -> None:  # noqa: ARG002
        self._missing += [
            topic.name for topic in topics if topic.name is not None and topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]

    def _charge(self, topics: list[TopicMetadata], now: float) -> None:
        """Charge the topics that the broker creates."""
        for topic in topics:
            name = topic.name or ""
            cost = self._costs.pop(name, 0)
            if cost > 0 and topic.error in _CREATED:
                self._charge_creation(name, topic.partitions or cost, now)
        if self._lookups.pending == 0:
            self._lose(now)

    def _charge_creation(self, name: str, cost: int, now: float) -> None:
        if self._quota is not None:
            self._quota.charge(cost, now)
            self._known.created_by_broker(name, now)

    def _lose(self, now: float) -> None:
        """Charge the creations without an answer, as nobody will learn their outcome. A second call does nothing."""
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            self._under_way.release(reservation)
        while self._costs:
            self._charge_creation(*self._costs.popitem(), now)
