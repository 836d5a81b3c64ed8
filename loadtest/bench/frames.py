"""Pre-encoded requests, so that the load costs its generator almost no CPU."""

import time
from dataclasses import dataclass
from functools import cache

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest

PRODUCE_VERSION = 11
FETCH_VERSION = 12
"""The newest versions with topic names; later ones have topic ids instead."""

CLIENT_ID = "bench"
_SMALL_RECORD, _BIG_RECORD = 100, 1024
_SMALL_BATCH = 1024
_RECORD_OVERHEAD = 16


@dataclass(frozen=True)
class Load:
    """The requests of one connection: `frames` in turn, with correlation ids 0, 1, ... in that order.

    Every response must contain `expected` (the error code 0) at `expected_at`, and have the length of the first one.
    """

    frames: tuple[bytes, ...]
    expected_at: int
    expected: bytes


def produce_load(topic: str, partition: int, size: int, depth: int, client_id: str = CLIENT_ID) -> Load:
    """A Produce with acks=1 and one batch of at most `size` bytes, and at least a few less.

    Up to 1 KiB the records have 100 bytes, above that 1 KiB; the last record fills the batch. A single record may exceed
    `size`.
    """
    batch = _batch(size)
    frames = tuple(
        _frame(
            ProduceRequest(
                transactional_id=None,
                acks=1,
                timeout_ms=30_000,
                topic_data=[(topic, [(partition, batch)])],
                version=PRODUCE_VERSION,
            ),
            correlation_id,
            client_id,
        )
        for correlation_id in range(depth)
    )
    # Length, correlation id, header tags, topics, the name with its length, partitions, partition index.
    return Load(frames, 4 + 4 + 1 + 1 + 1 + len(topic) + 1 + 4, b"\0\0")


def fetch_load(topic: str, partition: int, max_bytes: int, depth: int) -> Load:
    """A Fetch from offset 0 without a fetch session. All responses are the same: `max_bytes` of records."""
    frames = tuple(
        _frame(
            FetchRequest(
                replica_id=-1,
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=max_bytes,
                isolation_level=0,
                session_id=0,
                session_epoch=-1,
                topics=[(topic, [(partition, -1, 0, -1, -1, max_bytes)])],
                forgotten_topics_data=[],
                rack_id="",
                version=FETCH_VERSION,
            ),
            correlation_id,
        )
        for correlation_id in range(depth)
    )
    return Load(frames, 4 + 4 + 1 + 4, b"\0\0")  # length, correlation id, header tags, throttle time


@cache
def _batch(size: int) -> bytes:
    value = b"w" * (_SMALL_RECORD if size <= _SMALL_BATCH else _BIG_RECORD)
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        # The builder's own limit; it accepts the first record in any case.
        batch_size=size,
    )
    timestamp = int(time.time() * 1000)
    offset = 0
    while size - builder.size() > 2 * (len(value) + _RECORD_OVERHEAD) or offset == 0:
        builder.append(offset, timestamp, None, value, [])
        offset += 1
    for length in range(max(size - builder.size(), 0), 0, -1):
        if builder.append(offset, timestamp, None, b"w" * length, []) is not None:
            break
    return bytes(builder.build())


def _frame(request: ProduceRequest | FetchRequest, correlation_id: int, client_id: str = CLIENT_ID) -> bytes:
    request.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(request.encode(header=True, framed=True))
