"""The bench's requests are valid for an independent codec and for this project's parsers."""

import struct

import pytest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecords

from loadtest.bench.frames import CLIENT_ID, PRODUCE_VERSION, fetch_load, produce_load
from loadtest.bench.generator import Job


@pytest.mark.parametrize(("size", "record"), [(100, 100), (1024, 100), (16384, 1024), (1048576, 1024)])
def test_produce_frame_holds_one_valid_batch_of_its_size(size: int, record: int) -> None:
    (frame,) = produce_load("topic", 3, size, depth=1).frames
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    request = ProduceRequest.decode(frame[4:], version=PRODUCE_VERSION, header=True)
    assert request._header.client_id == CLIENT_ID
    assert request.acks == 1
    (topic,) = request.topic_data
    (partition,) = topic.partition_data
    assert (topic.name, partition.index) == ("topic", 3)
    batch = MemoryRecords(bytes(partition.records)).next_batch()
    assert batch.validate_crc()
    *values, last = [len(each.value) for each in batch]
    assert set(values) <= {record}
    assert last < 2 * record + 16
    assert size <= len(frame) < size + 150


def test_frames_differ_only_in_correlation_ids() -> None:
    frames = produce_load("topic", 0, 100, depth=3).frames
    assert [struct.unpack_from(">i", frame, 8)[0] for frame in frames] == [0, 1, 2]
    assert len({frame[:8] + frame[12:] for frame in frames}) == 1


def test_fetch_frame_asks_from_start_for_given_bytes() -> None:
    (frame,) = fetch_load("topic", 2, 1000, depth=1).frames
    request = FetchRequest.decode(frame[4:], version=12, header=True)
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (request.session_epoch, request.max_bytes) == (-1, 1000)
    assert (topic.topic, partition.partition, partition.fetch_offset, partition.partition_max_bytes) == ("topic", 2, 0, 1000)


def test_mixed_load_produces_and_fetches_in_turn() -> None:
    job = Job("", "sink", 8, 1000, api="mixed", fetch_topic="source")
    assert [job.load(number).frames[0][4:6] for number in range(4)] == [b"\0\0", b"\0\1"] * 2
    assert b"sink" in job.load(0).frames[0]
    assert b"source" in job.load(1).frames[0]
