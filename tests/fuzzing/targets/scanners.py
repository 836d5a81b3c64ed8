"""The scanners of streamed messages find the same in any chunks, and the same as the functions for whole frames."""

import random
from collections.abc import Callable

from protocol.api_keys import APIS, ApiKey
from protocol.bodies import produce
from protocol.bodies.lag_scanner import LagScanner
from protocol.bodies.produced_topics import (
    ProduceScanner,
    indexes_of,
    merged,
    producer_sequence,
    read_results,
    remainder,
    scan_whole,
    without,
)
from protocol.bodies.tail_scanner import TailScanner
from protocol.errors import InvalidFrame
from tests.protocol import codec
from tests.protocol.golden import golden
from tests.protocol.samples import response_frame

SHARE = 2.0


def check(data: bytes) -> None:
    """A byte for the scanner, one for the version, three for the chunks; then the bytes behind the frame's length."""
    if len(data) < 6:
        return
    chunks, frame = data[2:5], (len(data) - 5).to_bytes(4, "big") + data[5:]
    SCANNERS[data[0] % len(SCANNERS)](data[1], chunks, frame)


def _cut(frame: bytes, start: int, chunks: bytes) -> list[tuple[int, int]]:
    """The offsets of chunks, whose lengths repeat."""
    found, number = [], 0
    while start < len(frame):
        end = min(start + 1 + chunks[number % len(chunks)], len(frame))
        found.append((start, end))
        start, number = end, number + 1
    return found


_TAILS = ((ApiKey.FETCH, 16), (ApiKey.SHARE_FETCH, 0), (ApiKey.SHARE_ACKNOWLEDGE, 0), (ApiKey.PRODUCE, 1))
"""The responses that `TailScanner` knows, with their first versions."""


def _check_tail(version: int, chunks: bytes, frame: bytes) -> None:
    key, least = _TAILS[version % len(_TAILS)]
    version = least + version // len(_TAILS) % (APIS[key].max_version + 1 - least)

    def scan(parts: list[tuple[int, int]]) -> tuple[int, bool] | str:
        scanner, counted = TailScanner(key, version), 0
        try:
            for start, end in parts:
                counted += scanner.feed(frame, start, end)
        except InvalidFrame:
            return "invalid"
        return counted, scanner.reached

    whole = scan([(0, len(frame))])
    assert scan(_cut(frame, 0, chunks)) == whole
    if not isinstance(whole, str):
        assert whole[0] <= len(frame)
        assert whole[1] == (whole[0] < len(frame)), "a frame is whole, so the scanner reaches the section or refuses the frame"


def _check_lag(version: int, chunks: bytes, frame: bytes) -> None:
    version %= APIS[ApiKey.FETCH].max_version + 1

    def scan(parts: list[tuple[int, int]]) -> int:
        scanner = LagScanner(version)
        for start, end in parts:
            scanner.feed(frame, start, end)
        return scanner.lag()

    whole = scan([(0, len(frame))])
    assert scan(_cut(frame, 0, chunks)) == whole
    assert -1 <= whole < 1 << 64


def _check_produce(version: int, chunks: bytes, frame: bytes) -> None:
    version %= APIS[ApiKey.PRODUCE].max_version + 1

    def scan(parts: list[tuple[int, int]]) -> ProduceScanner | None:
        scanner = ProduceScanner(version, len(frame), 4)
        try:
            for start, end in parts:
                scanner.feed(frame, start, end)
        except InvalidFrame:
            return None
        return scanner if scanner.done else None

    whole, cut = scan([(4, len(frame))]), scan(_cut(frame, 4, chunks))
    assert _seen(whole) == _seen(cut)
    if whole is None:
        return
    assert _seen(scan_whole(version, frame, 4)) == _seen(whole)
    for topic in whole.topics:
        for partition in topic.partitions:
            producer_sequence(frame, partition)
    _check_cuts(version, chunks, frame, whole)


def _check_cuts(version: int, chunks: bytes, frame: bytes, scan: ProduceScanner) -> None:
    """A request without some partitions has the others, and the merged response has all of them in order."""
    places = [(number, place) for number, topic in enumerate(scan.topics) for place in range(len(topic.partitions))]
    cut = {place for number, place in enumerate(places) if chunks[0] >> number % 8 & 1}
    rest = without(version, frame, scan, cut)
    assert remainder(version, frame, scan, cut) == (None if cut and len(cut) == len(places) else rest if cut else frame)
    left = scan_whole(version, rest, 4)
    kept = [
        (scan.topics[number].key, scan.topics[number].partitions[place])
        for number, place in places
        if (number, place) not in cut
    ]
    read = [(topic.key, partition) for topic in left.topics for partition in topic.partitions]
    assert [(key, each.partition_index, each.size) for key, each in read] == [
        (key, each.partition_index, each.size) for key, each in kept
    ]
    for (_, ours), (_, theirs) in zip(read, kept, strict=True):
        assert rest[ours.records : ours.records + ours.size] == frame[theirs.records : theirs.records + theirs.size]
    # The broker answers the rest.
    answer = produce.refuse(version, 7, indexes_of(left.topics), 0, "")
    whole = merged(version, answer, read_results(version, answer), scan.topics, cut, 89, "over the threshold")
    results = read_results(version, whole).partitions
    errors = {}
    for number, place in places:
        errors.setdefault((scan.topics[number].key, scan.topics[number].partitions[place].partition_index), []).append(
            (number, place) in cut
        )
    assert results.keys() == errors.keys()
    for partition, result in results.items():
        assert result.error in (0, 89)
        assert (result.error == 89) in errors[partition]


def _seen(scanner: ProduceScanner | None) -> object:
    if scanner is None:
        return None
    partitions = [
        [(each.partition_index, each.start, each.records, each.size) for each in topic.partitions] for topic in scanner.topics
    ]
    topics = [(topic.key, topic.start, topic.first, topic.end, topic.ends) for topic in scanner.topics]
    return scanner.acks, scanner.array_start, scanner.array_end, topics, partitions


SCANNERS: tuple[Callable[[int, bytes, bytes], None], ...] = (_check_tail, _check_lag, _check_produce)


def seeds():
    rng = random.Random(3)
    for place, (key, least) in enumerate(_TAILS):
        for version in range(least, min(APIS[key].max_version, codec.response_class(key).max_version) + 1):
            frame = response_frame(key, version, rng)
            yield bytes((0, len(_TAILS) * (version - least) + place)) + b"\0\7\50" + frame[4:1_500]
    for each in golden(ApiKey.FETCH):
        yield bytes((1, each.version)) + b"\2\4\10" + each.frame[4:1_500]
    for version in range(min(APIS[ApiKey.PRODUCE].max_version, codec.request_class(ApiKey.PRODUCE).max_version) + 1):
        yield bytes((2, version)) + b"\5\1\37" + produce_body(version, rng)
        yield bytes((1, version)) + b"\2\4\10" + response_frame(ApiKey.FETCH, version, rng)[4:1_500]


def produce_body(version: int, rng: random.Random) -> bytes:
    import uuid

    def topic(name: str) -> dict[str, object]:
        data = [{"index": index, "records": rng.randbytes(rng.choice((0, 5, 70)))} for index in (0, 3, 1)]
        return ({"name": name} if version < 13 else {"topic_id": uuid.uuid5(uuid.NAMESPACE_DNS, name)}) | {
            "partition_data": data
        }

    values = {"acks": -1, "timeout_ms": 1000, "topic_data": [topic("payments"), topic("orders")]}
    message = codec.build(codec.request_class(ApiKey.PRODUCE), version, values)
    return bytes(message.encode(header=False, framed=False))
