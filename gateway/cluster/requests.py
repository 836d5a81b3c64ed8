"""Requests of Weir's own that aiokafka has no classes for, or only in versions that tell too little.

Layouts: ``MetadataRequest.json`` v12, ``DescribeLogDirsRequest.json`` v4 of Kafka 4.3.
"""

from io import BytesIO

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from protocol.bodies.topic_metadata import TopicMetadata, read_topics_body
from protocol.cursor import Reader
from protocol.errors import InvalidFrame

_UUID_BYTES = 16
NO_ID = bytes(_UUID_BYTES)
"""The topic id that stands for none."""


class Uuid:
    """A topic id, as its sixteen bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """As it is."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """The next sixteen bytes; ValueError where there are fewer."""
        value = data.read(_UUID_BYTES)
        if len(value) != _UUID_BYTES:
            raise ValueError("Buffer underrun decoding a topic id")
        return value


class MetadataResponse_v12(Response):  # type: ignore[misc]  # noqa: N801 -- named as aiokafka names its own
    """The brokers that are alive, and topics with their ids."""

    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class MetadataRequest_v12(RequestStruct):  # type: ignore[misc]  # noqa: N801
    """Metadata with topic ids (KIP-516), for topics by name."""

    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = MetadataResponse_v12
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class DescribeTopic(Request[MetadataRequest_v12]):  # type: ignore[misc]
    """The brokers that are alive and one topic, which is not created by being asked for."""

    API_KEY = 3

    def __init__(self, topic: str | None) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[MetadataRequest_v12]) -> MetadataRequest_v12:
        """The request in its only version."""
        topics: list[tuple[bytes, str, dict[int, bytes]]] = [] if self._topic is None else [(NO_ID, self._topic, {})]
        return request_struct_class(topics, False, False, {})


class TopicsResponse_v12(MetadataResponse_v12):  # noqa: N801
    """Every topic without its partitions, which may be many thousands; read without making objects of them."""

    @classmethod
    def decode(cls, data: BytesIO) -> list[TopicMetadata]:
        """The topics. Raises ValueError."""
        body = data.read()
        try:
            return read_topics_body(cls.API_VERSION, Reader(body, 0, len(body), len(body)))
        except InvalidFrame as error:
            raise ValueError(str(error)) from error


class TopicsRequest_v12(MetadataRequest_v12):  # noqa: N801
    """Metadata of all topics."""

    RESPONSE_TYPE = TopicsResponse_v12


class DescribeTopics(Request[TopicsRequest_v12]):  # type: ignore[misc]
    """All topics, with their ids; the answer is a list of `TopicMetadata`."""

    API_KEY = 3

    def build(self, request_struct_class: type[TopicsRequest_v12]) -> TopicsRequest_v12:
        """The request in its only version."""
        return request_struct_class(None, False, False, {})


class DescribeLogDirsResponse_v4(Response):  # type: ignore[misc]  # noqa: N801
    """Each log directory of a broker, with the size of its volume (KIP-827)."""

    API_KEY = 35
    API_VERSION = 4
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "results",
            CompactArray(
                ("error_code", Int16),
                ("log_dir", CompactString("utf-8")),
                (
                    "topics",
                    CompactArray(
                        ("name", CompactString("utf-8")),
                        (
                            "partitions",
                            CompactArray(
                                ("partition", Int32),
                                ("size", Int64),
                                ("offset_lag", Int64),
                                ("is_future", Boolean),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("total_bytes", Int64),
                ("usable_bytes", Int64),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeLogDirsRequest_v4(RequestStruct):  # type: ignore[misc]  # noqa: N801
    """The version that tells total_bytes and usable_bytes first."""

    FLEXIBLE_VERSION = True
    API_KEY = 35
    API_VERSION = 4
    RESPONSE_TYPE = DescribeLogDirsResponse_v4
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeLogDirs(Request[DescribeLogDirsRequest_v4]):  # type: ignore[misc]
    """A broker's log directories without the partitions in them, which may be many thousands."""

    API_KEY = 35

    def build(self, request_struct_class: type[DescribeLogDirsRequest_v4]) -> DescribeLogDirsRequest_v4:
        """The request in its only version."""
        return request_struct_class([], {})
