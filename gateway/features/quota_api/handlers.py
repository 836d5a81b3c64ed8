"""DescribeClientQuotas and AlterClientQuotas (KIP-546): what Weir holds is its own affair, what only a broker can hold the
broker's.

An alteration is checked, saved and put into effect here first; then the broker is asked for its part (`request_percentage`).
Where it refuses, its error is the entity's answer, and what was changed here of that entity is taken back.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.alterations import CLUSTER_AUTHORIZATION_FAILED, NONE, AlterTask, QuotaApiError, denied
from gateway.features.quota_api.rules import described, with_brokers
from gateway.proxy.handler import MAX_OPENED_BYTES, MAX_UNTRUSTED_BYTES, Connection, Opener, check_size
from gateway.proxy.in_flight import Entry
from protocol.api_keys import ApiKey
from protocol.bodies import client_quotas
from protocol.bodies.client_quotas import (
    AlterRequest,
    AlterResponse,
    AlterResult,
    Component,
    DescribedEntity,
    DescribeResponse,
    EntityPart,
)
from protocol.headers import RequestHeader


class QuotaApi(Protocol):
    """What answers for Weir's quotas."""

    def allows(self, user: str) -> bool:
        """Whether the user may see and change quotas."""
        ...

    def alter(self, request: AlterRequest, user: str, done: Callable[[], None]) -> AlterTask:
        """Begin with an alteration."""
        ...

    def undo(self, task: AlterTask, entity: tuple[EntityPart, ...]) -> None:
        """Take back what a task has changed of an entity."""
        ...

    def describe(self, components: Sequence[Component], *, strict: bool) -> list[DescribedEntity]:
        """Weir's quotas that a filter finds. Raises QuotaApiError where the filter is none."""
        ...


class DescribeClientQuotas:
    """Weir's quotas, with the broker's of keys that are not Weir's. A broker's own refusal is passed on."""

    # A filter has at most three components, so 32 KiB are enough for administrators as well.
    def __init__(self, connection: Connection, api: QuotaApi) -> None:
        self._user = connection.client.user
        self._api = api
        self._request = client_quotas.DescribeRequest((), strict=False)
        self._version = 0
        self._answer = b""

    def opens(self, size: int, now: float) -> bool:  # noqa: ARG002
        """Always, up to a length that no honest filter has."""
        check_size(size, MAX_UNTRUSTED_BYTES, "ask for fewer entity types")
        return True

    def prepare(self, frame: bytes, header: RequestHeader, now: float) -> bool:  # noqa: ARG002
        """There is nothing to wait for."""
        return True

    def request(self, frame: bytes, header: RequestHeader, entry: Entry, now: float) -> bytes | None:  # noqa: ARG002
        """The broker is asked the same, unless the answer is an error."""
        self._version = header.api_version
        if not self._api.allows(self._user):
            self._refuse(header, CLUSTER_AUTHORIZATION_FAILED, denied(self._user))
            return None
        self._request = client_quotas.read_describe_request(frame, header)
        try:
            described({}, self._request.components, strict=self._request.strict)
        except QuotaApiError as error:
            self._refuse(header, error.code, error.message)
            return None
        return frame

    def response(self, frame: bytes, now: float) -> bytes:  # noqa: ARG002
        """Both together."""
        theirs = client_quotas.read_describe_response(self._version, frame)
        if theirs.error_code != NONE:
            return frame
        ours = self._api.describe(self._request.components, strict=self._request.strict)
        merged = theirs._replace(entries=tuple(with_brokers(ours, theirs.entries or ())))
        return client_quotas.write_describe_response(self._version, _correlation_id(frame), merged)

    def answer(self, now: float) -> bytes:  # noqa: ARG002
        """The error."""
        return self._answer

    def _refuse(self, header: RequestHeader, code: int, message: str) -> None:
        response = DescribeResponse(0, code, message, None)
        self._answer = client_quotas.write_describe_response(header.api_version, header.correlation_id, response)


class AlterClientQuotas:
    """Weir's quotas are changed here, what is left is passed on."""

    def __init__(self, connection: Connection, api: QuotaApi) -> None:
        self._connection = connection
        self._api = api
        self._task: AlterTask | None = None
        self._results: dict[tuple[EntityPart, ...], AlterResult] = {}
        self._version = 0
        self._correlation_id = 0

    def opens(self, size: int, now: float) -> bool:  # noqa: ARG002
        """Always, up to a length that depends on the user."""
        user = self._connection.client.user
        if self._api.allows(user):
            check_size(size, MAX_OPENED_BYTES, "alter fewer entities at a time")
        else:
            check_size(size, MAX_UNTRUSTED_BYTES, f"add User:{user} to quota_admins, or alter fewer entities at a time")
        return True

    def prepare(self, frame: bytes, header: RequestHeader, now: float) -> bool:  # noqa: ARG002
        """Begin; true once everything that is Weir's is done."""
        if self._task is None:
            self._version, self._correlation_id = header.api_version, header.correlation_id
            request = client_quotas.read_alter_request(frame, header)
            user = self._connection.client.user
            if not self._api.allows(user):
                # Java's client waits for a result of each entity. Only the first has a message, so that the answer is not
                # much longer than the request; clients put their own text for the error code in place of a null message.
                message: str | None = denied(user)
                for each in request.entries:
                    if each.entity not in self._results:
                        self._results[each.entity] = AlterResult(CLUSTER_AUTHORIZATION_FAILED, message, each.entity)
                        message = None
                return True
            self._task = self._api.alter(request, user, self._connection.ready)
        return self._task.alteration is not None

    def request(self, frame: bytes, header: RequestHeader, entry: Entry, now: float) -> bytes | None:  # noqa: ARG002
        """What is the broker's to change, if anything is."""
        if self._task is None or self._task.alteration is None:
            return None
        self._results = self._task.alteration.results
        entries = tuple(self._task.alteration.for_broker)
        if not entries:
            return None
        return client_quotas.write_alter_request(frame, header, self._task.request._replace(entries=entries))

    def response(self, frame: bytes, now: float) -> bytes:  # noqa: ARG002
        """The broker's errors among the results; what it refuses is taken back here."""
        theirs = client_quotas.read_alter_response(self._version, frame)
        failed = {frozenset(result.entity): result for result in theirs.results if result.error_code != NONE}
        for entity, result in self._results.items():
            refused = failed.get(frozenset(entity))
            if refused is not None and self._task is not None:
                if result.error_code == NONE:
                    self._results[entity] = refused
                self._api.undo(self._task, entity)
        return self._written(theirs.throttle_time_ms)

    def answer(self, now: float) -> bytes:  # noqa: ARG002
        """The results, all of them Weir's."""
        return self._written(0)

    def _written(self, throttle_time_ms: int) -> bytes:
        response = AlterResponse(throttle_time_ms, tuple(self._results.values()))
        return client_quotas.write_alter_response(self._version, self._correlation_id, response)


def openers(api: QuotaApi) -> dict[int, Opener]:
    """What opens the requests of the quota API."""
    return {
        int(ApiKey.DESCRIBE_CLIENT_QUOTAS): lambda connection: DescribeClientQuotas(connection, api),
        int(ApiKey.ALTER_CLIENT_QUOTAS): lambda connection: AlterClientQuotas(connection, api),
    }


def _correlation_id(frame: bytes) -> int:
    return int.from_bytes(frame[4:8], "big", signed=True)
