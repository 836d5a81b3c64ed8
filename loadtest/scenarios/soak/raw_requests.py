"""Requests of the soak's clients in old, short versions, and the parts of the responses that they read."""

import time
from dataclasses import dataclass
from struct import Struct, pack
from typing import Final

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from protocol.api_keys import ApiKey
from protocol.cursor import Reader
from protocol.headers import RequestHeader, encode_request

NONE, NOT_LEADER, NOT_ENOUGH_REPLICAS = 0, 6, 19
"""Kafka's error codes."""

_BATCH_LIMIT: Final = 1 << 20
_PRODUCE_TIMEOUT_MS: Final = 30_000
_FETCH_WAIT_MS: Final = 100
_FETCH_BYTES: Final = 2048
_ALL_IN_SYNC: Final = -1
_KEY: Final = Struct(">Q")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The addresses of brokers, and the leader of each partition of a topic."""

    brokers: dict[int, tuple[str, int]]
    leaders: dict[str, dict[int, int]]

    def led_by(self, topic: str, broker: int) -> list[int]:
        return [partition for partition, leader in self.leaders.get(topic, {}).items() if leader == broker]


def api_versions(client_id: str, correlation_id: int) -> bytes:
    return _request(ApiKey.API_VERSIONS, 0, client_id, correlation_id, b"")


def metadata(client_id: str, correlation_id: int, topics: list[str]) -> bytes:
    body = pack(">i", len(topics)) + b"".join(_string(topic) for topic in topics)
    return _request(ApiKey.METADATA, 1, client_id, correlation_id, body)


def read_metadata(response: bytes) -> Cluster:
    """Read a response without its length."""
    reader = _reader(response)
    brokers = {}
    for _ in range(reader.count()):
        broker, host = reader.int32(), _text(reader)
        brokers[broker] = (host, reader.int32())
        reader.skip_string()
    reader.skip(4)  # the controller
    leaders = {}
    for _ in range(reader.count()):
        reader.skip(2)
        topic = _text(reader)
        reader.skip(1)
        partitions = {}
        for _ in range(reader.count()):
            reader.skip(2)
            partition, leader = reader.int32(), reader.int32()
            for _ in range(2):
                reader.skip(4 * reader.count())
            partitions[partition] = leader
        leaders[topic] = partitions
    return Cluster(brokers, leaders)


def batch_of(number: int, size: int) -> bytes:
    """A batch with one record: `number` is its key, and its value has `size` bytes."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=_BATCH_LIMIT,
    )  # fmt: skip
    builder.append(0, int(time.time() * 1000), _KEY.pack(number), b"w" * size, [])
    return bytes(builder.build())


def number_of(key: bytes) -> int:
    """The number in a record's key. Raises `struct.error`."""
    return int(_KEY.unpack(key)[0])


def produce(client_id: str, correlation_id: int, topic: str, partition: int, batch: bytes) -> bytes:
    body = pack(">hhii", -1, _ALL_IN_SYNC, _PRODUCE_TIMEOUT_MS, 1) + _string(topic)
    return _request(ApiKey.PRODUCE, 7, client_id, correlation_id, body + pack(">iii", 1, partition, len(batch)) + batch)


def read_produced(response: bytes) -> tuple[int, int]:
    """The error code and the offset of the only partition."""
    reader = _reader(response)
    reader.skip(4)
    reader.skip_string()
    reader.skip(8)
    error = reader.int16()
    return error, int.from_bytes(response[reader.pos : reader.pos + 8], "big", signed=True)


def fetch(client_id: str, correlation_id: int, topic: str, partition: int, offset: int) -> bytes:
    body = pack(">iiiibi", -1, _FETCH_WAIT_MS, 1, _FETCH_BYTES, 0, 1) + _string(topic)
    return _request(ApiKey.FETCH, 4, client_id, correlation_id, body + pack(">iiqi", 1, partition, offset, _FETCH_BYTES))


def read_fetched(response: bytes) -> int:
    """The error code of the only partition, or 0 for a response without partitions."""
    reader = _reader(response)
    reader.skip(4)
    if not reader.count():
        return NONE
    reader.skip_string()
    reader.skip(8)
    return int(reader.int16())


def alter_client_quota(client_id: str, correlation_id: int, entity: str, rates: dict[str, float | None]) -> bytes:
    """Set quotas of the client-id `entity`; None removes one."""
    operations = b"".join(
        _string(key) + pack(">db", 0.0 if rate is None else rate, rate is None) for key, rate in rates.items()
    )
    entry = pack(">i", 1) + _string("client-id") + _string(entity) + pack(">i", len(rates)) + operations
    return _request(ApiKey.ALTER_CLIENT_QUOTAS, 0, client_id, correlation_id, pack(">i", 1) + entry + b"\0")


def read_altered(response: bytes) -> int:
    """The error code of the only entity."""
    reader = _reader(response)
    reader.skip(8)
    return int(reader.int16())


def _request(key: ApiKey, version: int, client_id: str, correlation_id: int, body: bytes) -> bytes:
    return encode_request(RequestHeader(key, version, correlation_id, client_id, 0), body)


def _string(text: str) -> bytes:
    return pack(">h", len(text)) + text.encode()


def _reader(response: bytes) -> Reader:
    end = len(response)
    return Reader(response, 4, end, end, compact=False)


def _text(reader: Reader) -> str:
    return reader.string() or ""
