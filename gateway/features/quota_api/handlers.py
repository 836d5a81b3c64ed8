"""DescribeClientQuotas and AlterClientQuotas (KIP-546). Weir keeps its own quotas; the broker keeps `request_percentage`.

Weir checks, saves and applies an alteration. Then it forwards the broker's part to the broker. If the broker refuses an entity,
the client gets the broker's error, and Weir undoes its own change of that entity.
"""

from collections.abc import Sequence
from typing import Protocol

from gateway.alter_queue import AlterQueue, AlterTask, denied
from gateway.alterations import CLUSTER_AUTHORIZATION_FAILED, NONE, QuotaApiError
from gateway.features.quota_api.rules import described, with_brokers
from gateway.proxy.handler import (
    COLLECT,
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
from gateway.quotas.entity import GROUP
from protocol.api_keys import ApiKey
from protocol.bodies import client_quotas
from protocol.bodies.client_quotas import AlterResult, Component, DescribedEntity, EntityPart
from protocol.headers import RequestHeader


class Describe(Protocol):
    """Returns Weir's quotas that match a filter. Raises QuotaApiError for an invalid filter."""

    def __call__(self, components: Sequence[Component], *, strict: bool) -> list[DescribedEntity]: ...


class DescribeClientQuotas:
    """Merges Weir's quotas with the broker's quotas of other keys. The client gets an error of the broker unchanged."""

    # A filter has at most three components, so 32 KiB are enough for administrators as well.
    def __init__(self, connection: Connection, queue: AlterQueue, describe: Describe) -> None:
        self._client = connection.client
        self._queue = queue
        self._describe = describe
        self._request = client_quotas.DescribeRequest((), strict=False)
        self._version = 0

    def handle(self, request: Request, now: float) -> Verdict:
        """Forward the request, unless Weir answers it with an error."""
        self._client.use(request.header.client_id, now)
        check_size(request.frame_bytes, MAX_UNTRUSTED_BYTES, "ask for fewer entity types")
        if not request.whole:
            return COLLECT
        frame, header = request.cut()
        self._version = header.api_version
        if not self._queue.allows(self._client.user):
            return _refusal(header, CLUSTER_AUTHORIZATION_FAILED, denied(self._client.user))
        self._request = client_quotas.read_describe_request(frame, header)
        try:
            described({}, self._request.components, strict=self._request.strict)
        except QuotaApiError as error:
            return _refusal(header, error.code, error.message)
        if any(component.entity_type == GROUP for component in self._request.components):
            ours = tuple(self._describe(self._request.components, strict=self._request.strict))
            response = client_quotas.DescribeResponse(0, NONE, None, ours)  # a broker would refuse the type
            return Answer(client_quotas.write_describe_response(header.api_version, header.correlation_id, response))
        request.intercept(self)
        return FORWARD

    def response(self, frame: bytes, now: float) -> bytes:  # noqa: ARG002
        theirs = client_quotas.read_describe_response(self._version, frame)
        if theirs.error_code != NONE:
            return frame
        ours = self._describe(self._request.components, strict=self._request.strict)
        merged = theirs._replace(entries=tuple(with_brokers(ours, theirs.entries or ())))
        return client_quotas.write_describe_response(self._version, _correlation_id(frame), merged)


class AlterClientQuotas:
    """Changes Weir's quotas, and forwards the broker's part of the request."""

    def __init__(self, connection: Connection, queue: AlterQueue) -> None:
        self._connection = connection
        self._queue = queue
        self._task: AlterTask | None = None
        self._results: dict[tuple[EntityPart, ...], AlterResult] = {}
        self._version = 0
        self._correlation_id = 0

    def handle(self, request: Request, now: float) -> Verdict:
        self._connection.client.use(request.header.client_id, now)
        if self._task is None:
            user = self._connection.client.user
            size, allowed = request.frame_bytes, self._queue.allows(user)
            if allowed:
                check_size(size, MAX_COLLECTED_REQUEST_BYTES, "alter fewer entities at a time")
            else:
                check_size(size, MAX_UNTRUSTED_BYTES, f"add User:{user} to quota_admins, or alter fewer entities at a time")
            if not request.whole:
                return COLLECT
            frame, header = request.cut()
            self._version, self._correlation_id = header.api_version, header.correlation_id
            alteration = client_quotas.read_alter_request(frame, header)
            if not allowed:
                return self._denial(alteration, user)
            self._task = self._queue.alter(alteration, user, self._connection.ready)
        if self._task.alteration is None:
            return WAIT
        self._results = self._task.alteration.results
        entries = tuple(self._task.alteration.for_broker)
        if not entries:
            return Answer(self._written(0))
        request.intercept(self)
        frame, header = request.cut()
        return Replace(client_quotas.write_alter_request(frame, header, self._task.request._replace(entries=entries)))

    def _denial(self, request: client_quotas.AlterRequest, user: str) -> Answer:
        """Refuse all entities.

        Java's client waits for a result of each entity. Only the first result has a message, so that the answer is not much
        longer than the request. For the other results, clients show their own text of the error code.
        """
        message: str | None = denied(user)
        for each in request.entries:
            if each.entity not in self._results:
                self._results[each.entity] = AlterResult(CLUSTER_AUTHORIZATION_FAILED, message, each.entity)
                message = None
        return Answer(self._written(0))

    def response(self, frame: bytes, now: float) -> bytes:  # noqa: ARG002
        """Merge the broker's errors into the results, and undo Weir's changes of the entities that the broker refuses."""
        theirs = client_quotas.read_alter_response(self._version, frame)
        failed = {frozenset(result.entity): result for result in theirs.results if result.error_code != NONE}
        for entity, result in self._results.items():
            refused = failed.get(frozenset(entity))
            if refused is not None and self._task is not None:
                if result.error_code == NONE:
                    self._results[entity] = refused
                self._queue.undo(self._task, entity)
        return self._written(theirs.throttle_time_ms)

    def _written(self, throttle_time_ms: int) -> bytes:
        response = client_quotas.AlterResponse(throttle_time_ms, tuple(self._results.values()))
        return client_quotas.write_alter_response(self._version, self._correlation_id, response)


def handler_factories(queue: AlterQueue, describe: Describe) -> dict[int, HandlerFactory]:
    return {
        int(ApiKey.DESCRIBE_CLIENT_QUOTAS): lambda connection: DescribeClientQuotas(connection, queue, describe),
        int(ApiKey.ALTER_CLIENT_QUOTAS): lambda connection: AlterClientQuotas(connection, queue),
    }


def _refusal(header: RequestHeader, code: int, message: str) -> Answer:
    response = client_quotas.DescribeResponse(0, code, message, None)
    return Answer(client_quotas.write_describe_response(header.api_version, header.correlation_id, response))


def _correlation_id(frame: bytes) -> int:
    return int.from_bytes(frame[4:8], "big", signed=True)
