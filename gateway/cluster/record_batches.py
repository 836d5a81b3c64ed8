"""Records of Weir's own topics, encoded in batches (KIP-98)."""

from collections.abc import Iterable

from aiokafka.record.default_records import DefaultRecordBatchBuilder

BATCH_BYTES = 1024 * 1024

Record = tuple[bytes | None, bytes | None, *tuple[tuple[str, bytes], ...]]
"""Key, value, and any headers. A record without a value (a tombstone) deletes the key."""

NO_TIMESTAMP = -1
_NO_PRODUCER = -1


def batches_of(records: Iterable[Record], timestamp_ms: int = NO_TIMESTAMP) -> Iterable[tuple[bytes, int]]:
    """The records in batches that brokers accept, each with its number of records."""
    builder, count = _builder(), 0
    for key, value, *headers in records:
        if count and builder.size() + len(key or b"") + len(value or b"") > BATCH_BYTES // 2:
            yield bytes(builder.build()), count
            builder, count = _builder(), 0
        builder.append(count, timestamp_ms, key, value, headers)
        count += 1
    if count:
        yield bytes(builder.build()), count


def _builder() -> DefaultRecordBatchBuilder:
    return DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=_NO_PRODUCER, producer_epoch=_NO_PRODUCER,
        base_sequence=_NO_PRODUCER, batch_size=BATCH_BYTES,
    )  # fmt: skip
