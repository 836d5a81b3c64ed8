"""An admin client that uses any version of the protocol and ignores throttle times."""

import socket
import struct
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

TIMEOUT = 60.0


@dataclass(frozen=True)
class Answer:
    """The result of each topic in the response's order: (name, error code, message); and the throttle time."""

    topics: tuple[tuple[str, int, str | None], ...]
    throttle_time_ms: int
    ids: dict[str, uuid.UUID]

    @property
    def errors(self) -> dict[str, int]:
        return {name: error for name, error, _ in self.topics}


class RawAdmin:
    """One connection to `host:port` as `client_id`. Raises `OSError` if it is closed or an answer takes too long."""

    def __init__(self, address: str, client_id: str) -> None:
        host, port = address.split(",")[0].rsplit(":", 1)
        self._client_id = client_id
        self._socket = socket.create_connection((host, int(port)), TIMEOUT)
        self._stream = self._socket.makefile("rb")
        self._correlation_id = 0

    def create(self, topics: list[dict[str, Any]], version: int = 7, *, validate_only: bool = False) -> Answer:
        """CreateTopics. A topic has a name, a count, and optionally replicas, assignments and configs."""
        rows = [
            (
                topic["name"],
                topic.get("count", -1),
                topic.get("replicas", -1 if "assignments" in topic else 1),
                [(index, [broker]) for index, broker in enumerate(topic.get("assignments", ()))],
                list(topic.get("configs", {}).items()),
            )
            for topic in topics
        ]
        request = CreateTopicsRequest(topics=rows, timeout_ms=30_000, validate_only=validate_only, version=version)
        answer = self._exchange(request, CreateTopicsResponse, version)
        ids = {topic.name: topic.topic_id for topic in answer.topics} if version >= 7 else {}
        return Answer(_results(answer.topics), answer.throttle_time_ms, ids)

    def delete(self, topics: list[str | uuid.UUID], version: int = 6) -> Answer:
        """DeleteTopics, by name or id."""
        if version >= 6:
            rows = [(None, each) if isinstance(each, uuid.UUID) else (each, uuid.UUID(int=0)) for each in topics]
            request = DeleteTopicsRequest(topics=rows, timeout_ms=30_000, version=version)
        else:
            request = DeleteTopicsRequest(topic_names=topics, timeout_ms=30_000, version=version)
        answer = self._exchange(request, DeleteTopicsResponse, version)
        return Answer(_results(answer.responses), answer.throttle_time_ms, {})

    def grow(self, topics: list[dict[str, Any]], version: int = 3, *, validate_only: bool = False) -> Answer:
        """CreatePartitions. A topic has a name, its new count, and optionally the brokers of the new partitions."""
        rows = [
            (
                topic["name"],
                topic["count"],
                [([broker],) for broker in topic["assignments"]] if "assignments" in topic else None,
            )
            for topic in topics
        ]
        request = CreatePartitionsRequest(topics=rows, timeout_ms=30_000, validate_only=validate_only, version=version)
        answer = self._exchange(request, CreatePartitionsResponse, version)
        return Answer(_results(answer.results), answer.throttle_time_ms, {})

    def describe(self, topics: list[str], *, create: bool) -> Answer:
        """Metadata. With `create`, the broker may create topics that it does not find."""
        version = 12
        rows = [MetadataRequest.MetadataRequestTopic(version=version, name=name) for name in topics]
        request = MetadataRequest(topics=rows, allow_auto_topic_creation=create, version=version)
        answer = self._exchange(request, MetadataResponse, version)
        return Answer(_results(answer.topics), answer.throttle_time_ms, {})

    def set_quota(self, client_id: str, rate: float) -> None:
        """Set the broker's own controller_mutation_rate of a client-id. Raises `ValueError` if the broker refuses."""
        entries = [([("client-id", client_id)], [("controller_mutation_rate", rate, False)])]
        answer = self._exchange(
            AlterClientQuotasRequest(entries=entries, validate_only=False, version=1), AlterClientQuotasResponse, 1
        )
        for entry in answer.entries:
            if entry.error_code:
                raise ValueError(f"{client_id}: error {entry.error_code}: {entry.error_message}")

    def _exchange(self, request: ApiMessage, response: type[ApiMessage], version: int) -> ApiMessage:
        self._correlation_id += 1
        request.with_header(correlation_id=self._correlation_id, client_id=self._client_id)
        self._socket.sendall(request.encode(version=version, header=True, framed=True))
        prefix = self._stream.read(4)
        if len(prefix) < 4:
            raise ConnectionError("the connection was closed before the response")
        frame = prefix + self._stream.read(struct.unpack(">i", prefix)[0])
        return response.decode(frame, version=version, header=True, framed=True)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _results(results: Iterable[ApiMessage]) -> tuple[tuple[str, int, str | None], ...]:
    return tuple((each.name, each.error_code, getattr(each, "error_message", None)) for each in results)
