"""Requests as they go over the wire, encoded once: so that the load costs its generator next to nothing."""

import time
from dataclasses import dataclass
from functools import cache

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest

PRODUCE_VERSION = 11
FETCH_VERSION = 12
"""The newest versions that name topics; later ones carry topic ids in the same places."""

CLIENT_ID = "bench"
_SMALL_RECORD, _BIG_RECORD = 100, 1024
_SMALL_BATCH = 1024
_RECORD_OVERHEAD = 16


@dataclass(frozen=True)
class Load:
    """What one connection sends: `frames` in turn, with correlation ids 0, 1, ... in that order.

    Every response has to hold `expected` at `expected_at` (its error code, 0) and be as long as the first one.
    """

    frames: tuple[bytes, ...]
    expected_at: int
    expected: bytes


def produce_load(topic: str, partition: int, size: int, depth: int) -> Load:
    """Return a Produce with acks=1 of one batch of `size` bytes, a few less at most: the request is at least as long.

    Up to 1 KiB records of 100 bytes, above of 1 KiB; the last one is made as long as it takes. A single record may make the
    batch longer.
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
        )
        for correlation_id in range(depth)
    )
    # Length, correlation id, header tags, topics, the name with its length, partitions, partition index.
    return Load(frames, 4 + 4 + 1 + 1 + 1 + len(topic) + 1 + 4, b"\0\0")


def fetch_load(topic: str, partition: int, max_bytes: int, depth: int) -> Load:
    """Return a Fetch from offset 0 without a fetch session: the answers are all the same, `max_bytes` of records."""
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
        # Its own bound; the first record is always taken.
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


def _frame(request: ProduceRequest | FetchRequest, correlation_id: int) -> bytes:
    request.with_header(correlation_id=correlation_id, client_id=CLIENT_ID)
    return bytes(request.encode(header=True, framed=True))
