"""Records of Weir's own topics, encoded in batches (KIP-98).

Weir writes batches without compression. A topic that an operator created may have another `compression.type`. Brokers
then compress Weir's batches as well, so the reader unpacks them, up to a bound. Without it, a batch of 400 kB took 800 MB.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from struct import unpack_from
from typing import Any

import cramjam
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

BATCH_BYTES = 1024 * 1024

MAX_UNPACKED_BYTES = 2 * BATCH_BYTES
"""The maximum size of a compressed batch's records after unpacking. Weir writes at most `BATCH_BYTES` in a batch."""

_PREFIX_BYTES = 12
"""The bytes of a batch's offset and length, which the length does not count."""

_MIN_LENGTH = 14
"""The length of an empty record of the oldest format."""

_MAGIC_AT, _LEGACY_ATTRIBUTES_AT, _ATTRIBUTES_AT, _HEADER_BYTES = 16, 17, 22, 61
_CODEC_MASK = 0x07
_NO_CODEC, _GZIP, _SNAPPY, _LZ4, _ZSTD = range(5)
_GZIP_WINDOW = 31
_SNAPPY_STREAM = b"\x82SNAPPY\0"
_SNAPPY_STREAM_HEADER_BYTES = 16
_MAX_SNAPPY_BLOCKS = MAX_UNPACKED_BYTES // 1024

Record = tuple[bytes | None, bytes | None, *tuple[tuple[str, bytes], ...]]
"""Key, value, and any headers. A record without a value (a tombstone) deletes the key."""

Headers = Sequence[tuple[str, bytes]]
ReadRecord = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers."""

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


class BatchReader:
    """One whole batch as a broker has sent it. All methods raise exceptions of many types for a damaged batch."""

    def __init__(self, data: bytes) -> None:
        if len(data) < _PREFIX_BYTES + _MIN_LENGTH:
            raise ValueError("the batch is too short")
        self._data = data
        self._batch: Any = MemoryRecords(data).next_batch()
        self.next_offset: int = self._batch.next_offset

    def records(self, position: int) -> Iterator[ReadRecord]:
        """The records from the position on. A damaged batch may raise after some records."""
        batch = self._batch
        if batch.is_control_batch:
            return
        legacy = self._data[_MAGIC_AT] < 2
        codec = self._data[_LEGACY_ATTRIBUTES_AT if legacy else _ATTRIBUTES_AT] & _CODEC_MASK
        if codec != _NO_CODEC:
            if legacy:
                raise ValueError("its format is older than Kafka 0.11, with compression")
            batch = MemoryRecords(self._unpacked(codec)).next_batch()
        for record in batch:
            # Brokers send whole batches, even if one begins before the requested offset.
            if record.offset >= position:
                yield record.key, record.value, record.headers

    def _unpacked(self, codec: int) -> bytes:
        records = _unpacked(codec, self._data[_HEADER_BYTES:])
        header = bytearray(self._data[:_HEADER_BYTES])
        header[8:_PREFIX_BYTES] = (_HEADER_BYTES - _PREFIX_BYTES + len(records)).to_bytes(4, "big")
        header[_ATTRIBUTES_AT] &= ~_CODEC_MASK
        return bytes(header) + records


def whole_batches(data: bytes) -> Iterator[BatchReader]:
    """The batches of a Fetch answer, whose last one may be incomplete. Raises exceptions of many types."""
    at = 0
    while at + _PREFIX_BYTES <= len(data):
        (length,) = unpack_from(">i", data, at + 8)
        end = at + _PREFIX_BYTES + length
        if end > len(data):
            return
        yield BatchReader(data[at : max(at, end)])
        at = end


def _unpacked(codec: int, data: bytes) -> bytes:
    """The records of a compressed batch. Raises exceptions of many types, also above `MAX_UNPACKED_BYTES`."""
    if codec == _GZIP:
        return _gunzipped(data)
    if codec == _SNAPPY:
        return b"".join(_snappy_blocks(data))
    if codec not in (_LZ4, _ZSTD):
        raise ValueError(f"Weir does not know the codec {codec}")
    library = cramjam.lz4 if codec == _LZ4 else cramjam.zstd
    room = bytearray(MAX_UNPACKED_BYTES)  # the library raises an exception if the records need more
    try:
        return bytes(room[: library.decompress_into(data, room)])
    except cramjam.DecompressionError as error:
        raise ValueError(f"it is damaged, or takes more than {MAX_UNPACKED_BYTES} bytes unpacked ({error})") from None


def _gunzipped(data: bytes) -> bytes:
    decoder = zlib.decompressobj(_GZIP_WINDOW)
    records = decoder.decompress(data, MAX_UNPACKED_BYTES + 1)
    _check_unpacked(len(records))
    if not decoder.eof or decoder.unused_data:
        raise ValueError("its gzip data is not one whole member")
    return records


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    """Java's clients and brokers write a stream of blocks, librdkafka writes one block."""
    if not data.startswith(_SNAPPY_STREAM):
        _check_unpacked(cramjam.snappy.decompress_raw_len(data))
        yield bytes(cramjam.snappy.decompress_raw(data))
        return
    at, total = _SNAPPY_STREAM_HEADER_BYTES, 0
    for _ in range(_MAX_SNAPPY_BLOCKS):
        if at >= len(data):
            return
        (length,) = unpack_from(">i", data, at)
        block = data[at + 4 : at + 4 + max(0, length)]
        total += cramjam.snappy.decompress_raw_len(block)
        _check_unpacked(total)
        yield bytes(cramjam.snappy.decompress_raw(block))
        at += 4 + len(block)
    if at < len(data):
        raise ValueError(f"it has more than {_MAX_SNAPPY_BLOCKS} blocks of snappy")


def _check_unpacked(size: int) -> None:
    if size > MAX_UNPACKED_BYTES:
        raise ValueError(f"it takes more than {MAX_UNPACKED_BYTES} bytes unpacked")
