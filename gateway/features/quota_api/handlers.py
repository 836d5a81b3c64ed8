"""DescribeClientQuotas and AlterClientQuotas (KIP-546). Weir keeps its own quotas; the broker keeps `request_percentage`.

Weir checks, saves and applies an alteration. Then it forwards the broker's part to the broker. If the broker refuses an entity,
the client gets the broker's error, and Weir undoes its own change of that entity.

With `quota_admins: broker_acls`, a client without the right gets the broker's own refusal. The broker decides about a
description, because it gets the request as well. About an alteration, Weir asks it first (`AlterRight`).
"""

from collections.abc import Iterable
from typing import Final

from gateway.alter_queue import AlterQueue, AlterTask, denied
from gateway.alter_right import AlterRight
from gateway.alterations import QuotaApiError
from gateway.features.quota_api.descriptions import Describe, TakeSteps, merged, of_groups, refused
from gateway.features.quota_api.rules import names_one, wanted
from gateway.proxy.handler import (
    COLLECT,
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
from gateway.steps import Steps, at_once
from protocol.api_keys import ApiKey
from protocol.bodies import client_quotas
from protocol.bodies.client_quotas import (
    MATCH_DEFAULT,
    AlterRequest,
    AlterResult,
    Component,
    DescribeRequest,
    DescribeResponse,
    EntityPart,
)
from protocol.cursor import MAX_REPEATED_CHARACTERS
from protocol.error_codes import ErrorCode
from protocol.headers import RequestHeader

ONE_ENTITY: Final = DescribeRequest((Component("user", MATCH_DEFAULT, None), Component("client-id", MATCH_DEFAULT, None)), True)
"""A filter that every broker knows. At most one entity matches it."""


class DescribeClientQuotas:
    """Merges Weir's quotas with the broker's quotas of other keys. The client gets an error of the broker unchanged.

    The broker gets the request as one of Weir's own, and the client's next request waits for the answer. So a connection has at
    most one description at a time. A description may be a thousand times as long as its request, so `later` takes its steps.
    """

    def __init__(self, connection: Connection, queue: AlterQueue, describe: Describe, later: TakeSteps) -> None:
        self._connection = connection
        self._queue = queue
        self._describe = describe
        self._later = later
        self._request = DescribeRequest((), strict=False)
        self._version = 0
        self._asked = False
        self._answer: bytes | None = None
        self._error: Exception | None = None

    def handle(self, request: Request, now: float) -> Verdict:
        """Ask the broker, unless Weir answers with an error."""
        if self._error is not None:
            raise self._error
        if self._asked:
            return WAIT if self._answer is None else Answer(self._answer)
        client = self._connection.client
        client.use(request.header.client_id, now)
        # A filter has at most three components, so 32 KiB are enough for administrators as well.
        check_size(request.frame_bytes, MAX_UNTRUSTED_BYTES, "ask for fewer entity types")
        if not request.whole:
            return COLLECT
        frame, header = request.cut()
        self._version = header.api_version
        listed = self._queue.allows(client.user)
        if listed is False:
            return self._refuse(header, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, denied(client.user))
        self._request = client_quotas.read_describe_request(frame, header)
        if listed:
            try:
                wanted(self._request.components)
            except QuotaApiError as error:
                return self._refuse(header, error.code, error.message)
        self._asked = True
        if of_groups(self._request):
            if listed:
                self._answer_with(DescribeResponse(0, ErrorCode.NONE, None, ()), header.correlation_id)
                return WAIT
            frame = client_quotas.write_describe_request(frame, header, ONE_ENTITY)
        self._connection.send_own_request(frame, self._take, now)
        return WAIT

    @staticmethod
    def _refuse(header: RequestHeader, code: int, message: str) -> Answer:
        return Answer(refused(header.api_version, header.correlation_id, code, message))

    def _take(self, frame: bytes, now: float) -> None:  # noqa: ARG002
        theirs = client_quotas.read_describe_response(self._version, frame)
        if theirs.error_code == ErrorCode.NONE:
            self._answer_with(theirs, _correlation_id(frame))
        else:
            self._answer = frame
            self._connection.ready()

    def _answer_with(self, theirs: DescribeResponse, correlation_id: int) -> None:
        """Merge Weir's quotas into the broker's answer: a single entity at once, more of them later."""
        request = self._request
        take = at_once if names_one(request.components, strict=request.strict) else self._later
        take(self._while_open(merged(request, self._describe, theirs, self._version, correlation_id)))

    def _while_open(self, steps: Steps[bytes]) -> Steps[None]:
        """Make the answer, unless the connection ends first: nobody waits for it then."""
        while not self._connection.closed:
            try:
                next(steps)
            except StopIteration as end:
                self._answer = end.value
                break
            except Exception as error:  # the client waits for an answer, or for the end of its connection
                self._error = error
                break
            yield
        self._connection.ready()


class AlterClientQuotas:
    """Changes Weir's quotas, and forwards the broker's part of the request."""

    def __init__(self, connection: Connection, queue: AlterQueue) -> None:
        self._connection = connection
        self._queue = queue
        self._right = AlterRight(connection, queue)
        self._task: AlterTask | None = None
        self._results: dict[tuple[EntityPart, ...], AlterResult] = {}
        self._version = 0
        self._correlation_id = 0

    def handle(self, request: Request, now: float) -> Verdict:
        self._connection.client.use(request.header.client_id, now)
        if self._task is None:
            size = request.frame_bytes
            check_size(size, MAX_COLLECTED_REQUEST_BYTES, "alter fewer entities at a time")
            long = size > MAX_UNTRUSTED_BYTES
            if not (request.whole or long):
                return COLLECT
            # Before a long request is collected, its client must have the right. The collected request comes to a new handler.
            if not self._right.known(request.header, now):
                return WAIT
            refusal, user = self._right.refusal, self._connection.client.user
            if refusal is not None and long:
                remedy = f"alter fewer entities at a time, or give User:{user} the right to alter quotas"
                check_size(size, MAX_UNTRUSTED_BYTES, f"{remedy} ({refusal.message})")
            if not request.whole:
                return COLLECT
            frame, header = request.cut()
            self._version, self._correlation_id = header.api_version, header.correlation_id
            alteration = client_quotas.read_alter_request(frame, header)
            if refusal is not None:
                return self._refuse(alteration, refusal)
            self._task = self._queue.alter(alteration, user, self._connection.ready)
        if self._task.alteration is None:
            return WAIT
        self._results = self._task.alteration.results
        entries = tuple(self._task.alteration.for_broker)
        if not entries:
            return Answer(self._written(self._results.values()))
        request.intercept(self)
        frame, header = request.cut()
        return Replace(client_quotas.write_alter_request(frame, header, self._task.request._replace(entries=entries)))

    def _refuse(self, request: AlterRequest, refusal: AlterResult) -> Answer:
        """Refuse all entities.

        As at a broker, each entity of the request has a result, because Java's client waits for it. Weir's own message is in
        the first result alone, and so is a long one of the broker, to bound the answer. For the others, clients show their own
        text of the error code.
        """
        message = refusal.message or ""
        in_each = self._right.by_broker and len(message) * len(request.entries) <= MAX_REPEATED_CHARACTERS
        results = [
            AlterResult(refusal.error_code, refusal.message if in_each or number == 0 else None, each.entity)
            for number, each in enumerate(request.entries)
        ]
        return Answer(self._written(results))

    def response(self, frame: bytes, now: float) -> bytes:  # noqa: ARG002
        """Merge the broker's errors into the results, and undo Weir's changes of the entities that the broker refuses."""
        theirs = client_quotas.read_alter_response(self._version, frame)
        failed = {frozenset(result.entity): result for result in theirs.results if result.error_code != ErrorCode.NONE}
        for entity, result in self._results.items():
            refused = failed.get(frozenset(entity))
            if refused is not None and self._task is not None:
                if result.error_code == ErrorCode.NONE:
                    self._results[entity] = refused
                self._queue.undo(self._task, entity)
        return self._written(self._results.values(), theirs.throttle_time_ms)

    def _written(self, results: Iterable[AlterResult], throttle_time_ms: int = 0) -> bytes:
        """The answer, with the longer one of the broker's throttle times."""
        response = client_quotas.AlterResponse(max(throttle_time_ms, self._right.throttle_time_ms), tuple(results))
        return client_quotas.write_alter_response(self._version, self._correlation_id, response)


def handler_factories(queue: AlterQueue, describe: Describe, later: TakeSteps) -> dict[int, HandlerFactory]:
    return {
        int(ApiKey.DESCRIBE_CLIENT_QUOTAS): lambda connection: DescribeClientQuotas(connection, queue, describe, later),
        int(ApiKey.ALTER_CLIENT_QUOTAS): lambda connection: AlterClientQuotas(connection, queue),
    }


def _correlation_id(frame: bytes) -> int:
    return int.from_bytes(frame[4:8], "big", signed=True)
