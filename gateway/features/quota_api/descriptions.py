"""Descriptions of quotas: the answers, and the queue of those that take long."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.alterations import QuotaApiError
from gateway.features.quota_api.rules import with_brokers
from gateway.quotas.entity import GROUP
from gateway.steps import Steps, at_once, drained
from gateway.time_slices import in_slices
from protocol.bodies.client_quotas import (
    Component,
    DescribedEntity,
    DescribeRequest,
    DescribeResponse,
    describe_response_in_steps,
)
from protocol.error_codes import ErrorCode
from protocol.errors import InvalidFrame


class Describe(Protocol):
    """Returns Weir's quotas that match a filter, as they are at the call. The steps raise QuotaApiError for a bad filter."""

    def __call__(self, components: Sequence[Component], *, strict: bool) -> Steps[list[DescribedEntity]]: ...


TakeSteps = Callable[[Steps[None]], None]
"""Takes steps to their end, at once or later."""


class DescribeQueue:
    """The descriptions that wait, in the order of their requests. A connection has at most one.

    One at a time is made, in slices. If all took a step in each turn of the event loop, clients would wait for all of them.
    """

    def __init__(self) -> None:
        self._waiting: deque[Steps[None]] = deque()
        self._arrived = asyncio.Event()

    def add(self, steps: Steps[None]) -> None:
        self._waiting.append(steps)
        self._arrived.set()

    async def run(self) -> None:
        """Make descriptions until cancelled. Another call goes on with the one that was under way."""
        while True:
            await self._arrived.wait()
            while self._waiting:
                await in_slices(self._waiting[0])
                self._waiting.popleft()
            self._arrived.clear()


def merged(
    request: DescribeRequest, describe: Describe, theirs: DescribeResponse, version: int, correlation_id: int
) -> Steps[bytes]:
    """The frame of the broker's answer with Weir's quotas."""
    try:
        entries = yield from describe(request.components, strict=request.strict)
        if not of_groups(request):
            entries = yield from with_brokers(entries, theirs.entries or ())
    except QuotaApiError as error:  # the broker is newer, and knows more entity types
        return refused(version, correlation_id, error.code, error.message, theirs.throttle_time_ms)
    except InvalidFrame as error:
        text = f"Weir can not read the broker's answer: {error}."
        return refused(version, correlation_id, ErrorCode.UNKNOWN_SERVER_ERROR, text, theirs.throttle_time_ms)
    return (yield from describe_response_in_steps(version, correlation_id, theirs._replace(entries=drained(entries))))


def refused(version: int, correlation_id: int, code: int, message: str, throttle_time_ms: int = 0) -> bytes:
    response = DescribeResponse(throttle_time_ms, code, message, None)
    return at_once(describe_response_in_steps(version, correlation_id, response))


def of_groups(request: DescribeRequest) -> bool:
    """True if the filter has Weir's own entity type. A broker would refuse the type, and only Weir has such quotas."""
    return any(component.entity_type == GROUP for component in request.components)
