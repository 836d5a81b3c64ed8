"""Frames of requests and responses for transcripts, encoded by an independent codec."""

from hashlib import md5
from struct import pack_into
from typing import Any
from uuid import UUID

from protocol.api_keys import ApiKey
from tests.protocol import codec

TOPIC = "payments"


def topic_id(topic: str) -> bytes:
    """The id of a topic in messages of v13. The id of `TOPIC` is all zeros."""
    return bytes(16) if topic == TOPIC else md5(topic.encode(), usedforsecurity=False).digest()


def _topic(version: int, name_field: str, topic: str = TOPIC) -> dict[str, Any]:
    return {name_field: topic} if version < 13 else {"topic_id": UUID(bytes=topic_id(topic))}


def _padded(make: Any, size: int) -> bytes:
    """Return a frame of `make` with a length field of `size`. Records fill the frame up."""
    records = size
    for _ in range(4):
        frame: bytes = make(bytes(records))
        records += size - (len(frame) - 4)
        if len(frame) == size + 4:
            return frame
    raise AssertionError(f"no frame of this kind has the length {size}")


def produce(
    correlation_id: int,
    *,
    version: int = 9,
    acks: int = -1,
    size: int | None = None,
    client_id: str = "etl",
    topics: tuple[str, ...] = (TOPIC,),
) -> bytes:
    """A Produce request; `size` is its length field, which is its charge. See `topic_id` for v13."""

    def make(records: bytes) -> bytes:
        partitions = [{"index": 0, "records": records}]
        data = [_topic(version, "name", topic) | {"partition_data": partitions} for topic in topics]
        values = {"acks": acks, "timeout_ms": 1000, "topic_data": data}
        return codec.encode_request(ApiKey.PRODUCE, version, values, correlation_id, client_id)

    return make(b"some records") if size is None else _padded(make, size)


def produced(
    correlation_id: int,
    *,
    version: int = 9,
    throttle_time_ms: int = 0,
    partitions: int = 1,
    topic: str = TOPIC,
    **values: Any,
) -> bytes:
    """The response to `produce`."""
    answers = [{"index": index, "error_code": 0, "base_offset": 77} for index in range(partitions)]
    values |= {"responses": [_topic(version, "name", topic) | {"partition_responses": answers}]}
    if version >= 1:
        values["throttle_time_ms"] = throttle_time_ms
    return codec.encode_response(ApiKey.PRODUCE, version, values, correlation_id)


def fetch(
    correlation_id: int,
    *,
    version: int = 12,
    session: tuple[int, int] = (0, 0),
    topics: bool = True,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
    client_id: str = "etl",
) -> bytes:
    """A Fetch request. `session` is its id and epoch (from v7 on): (0, 0) begins a session, epoch -1 is without one."""
    wanted = [{"partition": 0, "fetch_offset": 5, "partition_max_bytes": 1 << 20}]
    values = {"max_wait_ms": max_wait_ms, "min_bytes": min_bytes}
    values["topics"] = [_topic(version, "topic") | {"partitions": wanted}] if topics else []
    if version >= 3:
        values["max_bytes"] = max_bytes
    if version >= 7:
        values["session_id"], values["session_epoch"] = session
    return codec.encode_request(ApiKey.FETCH, version, values, correlation_id, client_id)


def share_fetch(correlation_id: int, *, version: int = 1, epoch: int = 0, max_bytes: int = 2**31 - 1, **values: Any) -> bytes:
    """A ShareFetch request (KIP-932). Epoch 0 begins a session, -1 ends it."""
    values |= {"group_id": "g", "member_id": "m", "share_session_epoch": epoch, "max_bytes": max_bytes, "topics": []}
    return codec.encode_request(ApiKey.SHARE_FETCH, version, values, correlation_id, "etl")


def fetched(
    correlation_id: int,
    *,
    version: int = 12,
    size: int | None = None,
    records: bytes | None = b"some records",
    throttle_time_ms: int = 0,
    session_id: int = 0,
    **values: Any,
) -> bytes:
    """The response to `fetch`; `size` is its charge: four bytes and its body. `records` None: no partitions at all."""
    if version >= 1:
        values["throttle_time_ms"] = throttle_time_ms
    if version >= 7:
        values["session_id"] = session_id

    def make(records: bytes | None) -> bytes:
        partitions = [{"partition_index": 0, "error_code": 0, "high_watermark": 9, "records": records}]
        values["responses"] = [] if records is None else [_topic(version, "topic") | {"partitions": partitions}]
        return codec.encode_response(ApiKey.FETCH, version, values, correlation_id)

    return make(records) if size is None else _padded(make, size + (version >= 12))


def fetched_nothing(correlation_id: int, *, version: int = 12, throttle_time_ms: int = 0, session_id: int = 0) -> bytes:
    """The empty response of a throttled Fetch (KIP-219)."""
    return fetched(correlation_id, version=version, records=None, throttle_time_ms=throttle_time_ms, session_id=session_id)


def numbered_batch(sequence: int, producer_id: int = 7, epoch: int = 0) -> bytes:
    """The head of an idempotent producer's batch."""
    made = bytearray(70)
    made[16] = 2
    pack_into(">qhi", made, 43, producer_id, epoch, sequence)
    return bytes(made)


def batch(size: int) -> bytes:
    """The parts of a record batch of `size` bytes that Weir reads."""
    return bytes(8) + (size - 12).to_bytes(4, "big") + bytes(size - 12)


def metadata(correlation_id: int, *, version: int = 12, client_id: str = "etl") -> bytes:
    """A Metadata request for all topics."""
    return codec.encode_request(ApiKey.METADATA, version, {"topics": None}, correlation_id, client_id)


NOT_OF_BROKERS = {ApiKey.DESCRIBE_QUORUM, ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_DESCRIBE}
"""Answers with addresses of controllers, and with those of Kafka Streams applications."""
BROKERS = [(0, "kafka-0.internal", 9092), (1, "kafka-1.internal", 9093)]


def node_endpoints(brokers: list[tuple[int, str, int]]) -> list[dict[str, Any]]:
    """Return brokers' addresses as a message has them."""
    return [{"node_id": node_id, "host": host, "port": port, "rack": "r"} for node_id, host, port in brokers]


def described(
    correlation_id: int, brokers: list[tuple[int, str, int]], *, version: int = 12, throttle_time_ms: int = 0
) -> bytes:
    """The response to `metadata`."""
    topics = [{"error_code": 0, "name": f"topic-{number}", "partitions": []} for number in range(20)]
    values = {"brokers": node_endpoints(brokers), "topics": topics, "throttle_time_ms": throttle_time_ms}
    return codec.encode_response(ApiKey.METADATA, version, values, correlation_id)


def api_versions(correlation_id: int, *, version: int = 3) -> bytes:
    """An ApiVersions request."""
    values = {"client_software_name": "test", "client_software_version": "1"} if version >= 3 else {}
    return codec.encode_request(ApiKey.API_VERSIONS, version, values, correlation_id, "etl")


def versions_are(correlation_id: int, ranges: list[tuple[int, int, int]], *, version: int = 3, error_code: int = 0) -> bytes:
    """The response to `api_versions`: (API key, lowest version, highest version) each."""
    keys = [dict(zip(("api_key", "min_version", "max_version"), each, strict=True)) for each in ranges]
    values: dict[str, Any] = {"api_keys": keys, "error_code": error_code}
    if version >= 1:
        values["throttle_time_ms"] = 0
    return codec.encode_response(ApiKey.API_VERSIONS, version, values, correlation_id)


def heartbeat(correlation_id: int, *, version: int = 4) -> bytes:
    """A Heartbeat request, which Weir forwards without parsing."""
    values = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    return codec.encode_request(ApiKey.HEARTBEAT, version, values, correlation_id, "etl")


def beat(correlation_id: int, *, version: int = 4, throttle_time_ms: int = 0) -> bytes:
    """The response to `heartbeat`."""
    return codec.encode_response(ApiKey.HEARTBEAT, version, {"throttle_time_ms": throttle_time_ms}, correlation_id)
