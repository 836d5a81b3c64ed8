"""Produce by topic and partition: scanned in any chunking, cut, and answers merged, against kafka-python's codec."""

import random
import tracemalloc
import uuid
from itertools import pairwise
from struct import pack, pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import ApiKey
from protocol.bodies.partition_sizes import PartitionSizes
from protocol.bodies.produce import MAX_PRODUCE_ELEMENTS
from protocol.bodies.produced_topics import (
    ProduceScanner,
    merged,
    producer_sequence,
    read_results,
    scan_whole,
    without,
)
from protocol.encoding import encode_uvarint
from protocol.errors import InvalidFrame
from protocol.headers import parse_request_header
from tests.protocol import codec

VERSIONS = range(14)
NAMES = [b"payments", b"o", b"n" * 249]
IDS = [bytes([number]) * 16 for number in range(1, 4)]


def keys(version):
    return IDS if version >= 13 else NAMES


def field(version, key):
    return {"topic_id": uuid.UUID(bytes=key)} if version >= 13 else {"name": key.decode()}


def request(version, topics, acks=-1):
    """`topics`: (key, [(partition, records)])."""
    data = [
        field(version, key) | {"partition_data": [{"index": index, "records": records} for index, records in partitions]}
        for key, partitions in topics
    ]
    values = {"acks": acks, "timeout_ms": 1000, "topic_data": data} | ({"transactional_id": "tx"} if version >= 3 else {})
    frame = codec.encode_request(ApiKey.PRODUCE, version, values, 1, "client")
    return frame, parse_request_header(frame, 4, len(frame)).body_offset


def response(version, topics, **values):
    """`topics`: (key, [(partition, error)])."""
    data = [
        field(version, key)
        | {
            "partition_responses": [
                {"index": index, "error_code": error, "base_offset": 70 + index} for index, error in partitions
            ]
        }
        for key, partitions in topics
    ]
    return codec.encode_response(ApiKey.PRODUCE, version, {"responses": data} | values, 1)


def some(version):
    a, b, c = keys(version)
    return [(a, [(0, b"x" * 300), (7, b"")]), (b, []), (c, [(2, None), (1, b"y" * 130)])]


def found(scan):
    return [(topic.key, [(part.partition_index, part.size) for part in topic.partitions]) for topic in scan.topics]


def expected(topics):
    return [(key, [(index, len(records or b"")) for index, records in partitions]) for key, partitions in topics]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("by", [1, 2, 7, 64, 10_000])
def test_request_is_scanned_in_any_chunks(version, by):
    frame, body = request(version, some(version), acks=1)
    scanner = ProduceScanner(version, len(frame), body)
    for start in range(body, len(frame), by):
        scanner.feed(frame, start, min(start + by, len(frame)))
    assert scanner.done
    assert scanner.acks == 1
    assert found(scanner) == expected(some(version))
    for topic in scanner.topics:
        for part in topic.partitions:
            assert frame[part.records : part.records + part.size] in {b"x" * 300, b"y" * 130, b""}


@given(st.integers(0, 13), st.data())
def test_random_request_is_scanned_alike_in_any_chunks(version, data):
    partitions = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.none() | st.binary(max_size=400)), max_size=4)
    topics = data.draw(st.lists(st.tuples(st.sampled_from(keys(version)), partitions), max_size=4))
    frame, body = request(version, topics)
    whole = scan_whole(version, frame, body)
    assert found(whole) == expected(topics)
    scanner = ProduceScanner(version, len(frame), body)
    pos = body
    while pos < len(frame):
        end = min(pos + data.draw(st.integers(1, 200)), len(frame))
        scanner.feed(frame[pos:end], 0, end - pos)
        pos = end
    assert found(scanner) == found(whole)
    assert (scanner.array_start, scanner.array_end) == (whole.array_start, whole.array_end)
    assert [(topic.start, topic.first, topic.ends, topic.end) for topic in scanner.topics] == [
        (topic.start, topic.first, topic.ends, topic.end) for topic in whole.topics
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_request_is_invalid(version):
    frame, body = request(version, some(version))
    end = scan_whole(version, frame, body).array_end
    for cut in range(body, end):
        with pytest.raises(InvalidFrame):
            scan_whole(version, frame[:cut], body)


def test_bytes_behind_the_frame_are_not_read():
    frame, body = request(9, some(9))
    scanner = ProduceScanner(9, len(frame), body)
    scanner.feed(frame + b"\xff" * 100, body, len(frame) + 100)
    assert scanner.done


def tagged(tags):
    """A section of tagged fields."""
    return encode_uvarint(len(tags)) + b"".join(encode_uvarint(5) + encode_uvarint(len(tag)) + tag for tag in tags)


def tagged_request(topics):
    """A Produce v9; `topics`: (name, [(partition, records, tags)], tags). Without a header: the body begins at 0."""
    body = b"\0" + pack(">hi", -1, 1000) + encode_uvarint(len(topics) + 1)
    for name, partitions, tags in topics:
        body += encode_uvarint(len(name) + 1) + name + encode_uvarint(len(partitions) + 1)
        for index, records, partition_tags in partitions:
            body += pack(">i", index) + encode_uvarint(len(records) + 1) + records + tagged(partition_tags)
        body += tagged(tags)
    return body + b"\0"


tag_lists = st.lists(st.binary(max_size=200), max_size=5)
tagged_partitions = st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=50), tag_lists), max_size=3)


@given(st.lists(st.tuples(st.sampled_from(NAMES), tagged_partitions, tag_lists), max_size=3), st.data())
def test_chunking_does_not_change_result_with_tags(topics, data):
    frame = tagged_request(topics)
    whole = scan_whole(9, frame, 0)
    assert found(whole) == [(name, [(index, len(records)) for index, records, _ in parts]) for name, parts, _ in topics]
    assert whole.array_end == len(frame) - 1
    cuts = data.draw(st.sets(st.integers(0, len(frame)), max_size=30) | st.just(set(range(len(frame)))))
    edges = [0, *sorted(cuts), len(frame)]
    scanner = ProduceScanner(9, len(frame), 0)
    for start, end in pairwise(edges):
        scanner.feed(frame[start:end], 0, end - start)
    assert scanner.done
    assert found(scanner) == found(whole)
    assert [(topic.ends, topic.end) for topic in scanner.topics] == [(topic.ends, topic.end) for topic in whole.topics]


def test_long_tagged_field_is_not_held():
    tag = bytes(1 << 20)
    frame = tagged_request([(b"t", [(0, b"", [b"", tag, b"x"])], [])])
    scanner = ProduceScanner(9, len(frame), 0)
    tracemalloc.start()
    for start in range(0, len(frame), 1 << 16):
        scanner.feed(frame, start, min(start + (1 << 16), len(frame)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert scanner.done
    assert peak < 1 << 17


@pytest.mark.parametrize("cut", [frozenset(), {(0, 0), (2, 1)}])
@pytest.mark.parametrize("version", [9, 13])
def test_sizes_are_those_of_the_partitions_that_stay(version, cut):
    frame, body = request(version, some(version))
    sizes = PartitionSizes(scan_whole(version, frame, body).topics, cut)
    assert list(sizes) == [
        (key, index, len(records or b""))
        for number, (key, partitions) in enumerate(some(version))
        for position, (index, records) in enumerate(partitions)
        if (number, position) not in cut
    ]


def test_sizes_of_many_topics_take_little_memory():
    """A client may have many such requests in flight, each of 5 bytes a topic."""
    count = 5_000
    frame = tagged_request([(b"%04d" % number, [], []) for number in range(count)])
    tracemalloc.start()
    sizes = PartitionSizes(scan_whole(9, frame, 0).topics)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert list(sizes) == []
    assert kept_bytes < 16 * count


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("by", [1, 7, 64, 10_000])
def test_drained_sizes_are_those_of_the_whole_request(version, by):
    frame, body = request(version, some(version))
    scanner, sizes = ProduceScanner(version, len(frame), body), PartitionSizes()
    for start in range(body, len(frame), by):
        scanner.feed(frame, start, min(start + by, len(frame)))
        sizes.drain(scanner.topics)
    assert scanner.done
    assert list(sizes) == list(PartitionSizes(scan_whole(version, frame, body).topics))


@pytest.mark.parametrize("partitions", [1, 5_000], ids=["topics", "partitions"])
def test_unfinished_request_takes_little_memory(partitions):
    """Its client may never send the rest."""
    count = 5_000
    topics = [(b"%04d" % number, [(0, b"", [])] * partitions, []) for number in range(count // partitions)]
    frame = tagged_request(topics)
    scanner, sizes = ProduceScanner(9, len(frame), 0), PartitionSizes()
    tracemalloc.start()
    for start in range(0, len(frame) - 2, 1_000):
        scanner.feed(frame, start, min(start + 1_000, len(frame) - 2))
        sizes.drain(scanner.topics)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not scanner.done
    assert len(list(sizes)) == count
    assert kept_bytes < 1.5 * sizes.kept_bytes < 36 * count


def test_tagged_field_beyond_frame_is_invalid():
    frame = tagged_request([(b"t", [(0, b"", [bytes(1_000)])], [])])
    scanner = ProduceScanner(9, 500, 0)
    with pytest.raises(InvalidFrame, match="beyond its frame"):
        scanner.feed(frame, 0, 400)


@pytest.mark.parametrize("what", ["partitions", "tags"])
def test_number_of_elements_is_bounded(what):
    many = MAX_PRODUCE_ELEMENTS
    partitions = [(0, b"", [])] * many if what == "partitions" else [(0, b"", [b""] * many)]
    with pytest.raises(InvalidFrame) as caught:
        scan_whole(9, tagged_request([(b"t", partitions, [])]), 0)
    assert caught.value.reason == "too_many_elements"


@pytest.mark.parametrize("version", VERSIONS)
@given(seed=st.integers(0, 2**32))
def test_random_changes_raise_only_invalid_frame(version, seed):
    rng = random.Random(seed)
    frame, body = request(version, some(version))
    broken = bytearray(frame)
    for _ in range(rng.randrange(1, 6)):
        broken[rng.randrange(body, len(frame))] = rng.randrange(256)
    try:
        scan = scan_whole(version, bytes(broken), body)
    except InvalidFrame:
        return
    assert all(part.records + part.size <= len(frame) for topic in scan.topics for part in topic.partitions)


CUTS = [set(), {(0, 0)}, {(0, 1)}, {(0, 0), (0, 1)}, {(2, 0)}, {(0, 1), (2, 1)}, {(2, 0), (2, 1)}]


def kept(version, cut):
    left = []
    for number, (key, partitions) in enumerate(some(version)):
        rest = [part for position, part in enumerate(partitions) if (number, position) not in cut]
        if rest or not partitions:
            left.append((key, rest))
    return left


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("cut", CUTS)
def test_partitions_are_cut_and_the_rest_stays(version, cut):
    frame, body = request(version, some(version))
    left = without(version, frame, scan_whole(version, frame, body), cut)
    assert left == request(version, kept(version, cut))[0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("cut", CUTS)
def test_merged_answer_keeps_request_order(version, cut):
    a, b, c = keys(version)
    frame, body = request(version, some(version))
    topics = scan_whole(version, frame, body).topics
    sent = [(key, [(index, 0) for index, _ in partitions]) for key, partitions in kept(version, cut)]
    values = {"throttle_time_ms": 88} if version >= 1 else {}
    broker = response(version, sent[::-1], **values)
    results = read_results(version, broker)
    answer = codec.decode_response(ApiKey.PRODUCE, version, merged(version, broker, results, topics, cut, 19, "why"))
    got = []
    for topic in answer["responses"]:
        key = topic["topic_id"].bytes if version >= 13 else topic["name"].encode()
        got.append((key, [(part["index"], part["error_code"]) for part in topic["partition_responses"]]))
        for part in topic["partition_responses"]:
            failed = part["error_code"] != 0
            assert part["base_offset"] == (-1 if failed else 70 + part["index"])
            assert part.get("log_append_time_ms", -1) == -1
            assert part.get("log_start_offset", -1) == -1
            assert part.get("error_message", "why" if failed else None) == ("why" if failed else None)
    wanted = {(0, 0): (a, 0), (0, 1): (a, 7), (2, 0): (c, 2), (2, 1): (c, 1)}
    errors = {place: 19 if place in cut else 0 for place in wanted}
    assert got == [(a, [(0, errors[0, 0]), (7, errors[0, 1])]), (b, []), (c, [(2, errors[2, 0]), (1, errors[2, 1])])]
    assert answer.get("throttle_time_ms", 88) == 88


def test_long_merged_answer_has_message_once():
    count, message = 3_000, "m" * 100
    frame, body = request(9, [(b"t", [(index, b"") for index in range(count)])])
    topics = scan_whole(9, frame, body).topics
    broker = response(9, [(b"t", [(0, 0)])], throttle_time_ms=0)
    answer = merged(9, broker, read_results(9, broker), topics, {(0, index) for index in range(1, count)}, 19, message)
    (topic,) = codec.decode_response(ApiKey.PRODUCE, 9, answer)["responses"]
    assert [part["error_code"] for part in topic["partition_responses"]] == [0] + [19] * (count - 1)
    assert [part["error_message"] for part in topic["partition_responses"]] == [None, message] + [None] * (count - 2)


def test_unknown_tagged_fields_survive():
    frame, body = request(9, [(b"t", [(0, b"abc"), (1, b"def")])])
    tag = b"\x01\x63\x02hi"  # one tagged field, number 99, of two bytes
    assert frame.endswith(b"def\0\0\0")
    tagged = frame[:-3] + tag * 3
    tagged = pack(">i", len(tagged) - 4) + tagged[4:]
    left = without(9, tagged, scan_whole(9, tagged, body), {(0, 0)})
    assert left.endswith(b"\x04def" + tag * 3)
    broker = response(9, [(b"t", [(1, 0)])], throttle_time_ms=0)
    assert broker.endswith(b"\x01\0" + bytes(2 + 4 + 1))  # no errors; tags of partition and topic, throttle time, tags
    answer = broker[:-7] + tag * 2 + broker[-5:]
    answer = pack(">i", len(answer) - 4) + answer[4:]
    topics = scan_whole(9, frame, body).topics
    assert merged(9, answer, read_results(9, answer), topics, {(0, 0)}, 19, "").count(tag) == 2


def batch(producer_id, epoch, sequence, magic=2, size=80):
    made = bytearray(size)
    made[16] = magic
    pack_into(">qhi", made, 43, producer_id, epoch, sequence)
    return bytes(made)


@pytest.mark.parametrize(
    ("records", "sequence"),
    [
        (batch(7, 1, 40), (7, 1, 40)),
        (batch(-1, -1, -1), None),
        (batch(7, 1, 40, magic=1), None),
        (batch(7, 1, 40, size=61), (7, 1, 40)),
        (batch(7, 1, 40)[:60], None),
        (None, None),
    ],
)
def test_sequence_of_an_idempotent_producer_is_read(records, sequence):
    frame, body = request(9, [(b"t", [(0, records)])])
    (topic,) = scan_whole(9, frame, body).topics
    assert producer_sequence(frame, topic.partitions[0]) == sequence
