import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import NEVER, ApiKey
from protocol.bodies.node_endpoints import endpoints_since, rewrite_behind, rewrite_frame, rewrite_tail, section_offset
from protocol.bodies.tail_scanner import TailScanner
from protocol.encoding import encode_uvarint
from protocol.errors import InvalidFrame
from tests.protocol import codec
from tests.protocol.bodies.addressing import TRANSLATIONS, gateway, nothing, same
from tests.protocol.samples import response_frame, with_length

VERSIONS = {
    ApiKey.PRODUCE: range(10, 14),
    ApiKey.FETCH: range(16, 19),
    ApiKey.SHARE_FETCH: range(3),
    ApiKey.SHARE_ACKNOWLEDGE: range(3),
}
KINDS = [(key, version) for key, versions in VERSIONS.items() for version in versions]
TAGGED = (ApiKey.PRODUCE, ApiKey.FETCH)

hosts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
nodes = st.builds(
    lambda node_id, host, port, rack: {"node_id": node_id, "host": host, "port": port, "rack": rack},
    st.integers(0, 2**31 - 1),
    hosts,
    st.integers(1, 65_535),
    st.none() | hosts,
)
endpoint_lists = st.lists(nodes, max_size=4, unique_by=lambda node: node["node_id"])


def made_up(key, version, endpoints, seed=1):
    return response_frame(key, version, random.Random(seed), node_endpoints=endpoints)


def translated(endpoints, translate):
    moved = [(node, translate(node["node_id"], node["host"], node["port"])) for node in endpoints]
    return [node | {"host": address[0], "port": address[1]} for node, address in moved if address]


def split(key, version, frame):
    """Split a frame into the bytes before the section of endpoints, and the tail."""
    at = TailScanner(key, version).feed(frame, 0, len(frame)) + section_offset(key)
    return frame[:at], frame[at:]


def without_padding(decoded):
    return {name: value for name, value in decoded.items() if name != "unknown_tags"}


@pytest.mark.parametrize(("key", "version"), KINDS)
@given(endpoints=endpoint_lists, translate=st.sampled_from(TRANSLATIONS))
def test_whole_frame_is_rewritten(key, version, endpoints, translate):
    frame = made_up(key, version, endpoints)
    before = codec.decode_response(key, version, frame)
    rewritten = rewrite_frame(key, version, frame, translate)
    expected = before | {"node_endpoints": translated(endpoints, translate)}
    assert codec.decode_response(key, version, rewritten) == expected
    if translate is same or not endpoints:
        assert rewritten == frame
    head, _ = split(key, version, frame)
    assert rewrite_behind(key, frame, len(head), translate) == rewritten


@pytest.mark.parametrize(("key", "version"), KINDS)
@given(endpoints=endpoint_lists, translate=st.sampled_from(TRANSLATIONS))
def test_tail_keeps_its_length_without_old_addresses(key, version, endpoints, translate):
    frame = made_up(key, version, endpoints)
    head, tail = split(key, version, frame)
    rewritten = rewrite_tail(key, version, tail, translate)
    assert len(rewritten) == len(tail)
    before = codec.decode_response(key, version, frame)
    after = codec.decode_response(key, version, head + rewritten)
    assert after["node_endpoints"] in (translated(endpoints, translate), [])
    others = {"node_endpoints": None}
    assert without_padding(after) | others == without_padding(before) | others
    if translate is same or not endpoints:
        assert rewritten == tail


@pytest.mark.parametrize(("key", "version"), KINDS)
def test_addresses_are_dropped_only_without_room(key, version):
    """One endpoint with a host of 400 bytes; new hosts of each length from 1 byte to beyond the available room."""
    _, tail = split(key, version, made_up(key, version, [{"node_id": 1, "host": "o" * 400, "port": 1, "rack": "r"}]))
    head, _ = split(key, version, made_up(key, version, []))
    dropped = []
    for length in range(1, 410):
        rewritten = rewrite_tail(key, version, tail, lambda node_id, host, port, n=length: ("n" * n, 9))
        assert len(rewritten) == len(tail)
        kept = codec.decode_response(key, version, with_length(head[4:] + rewritten))["node_endpoints"]
        if kept:
            assert kept == [{"node_id": 1, "host": "n" * length, "port": 9, "rack": "r"}]
        else:
            dropped.append(length)
    # A host of 399 bytes leaves one byte, and a tagged field needs at least two.
    assert dropped == [399, *range(401, 410)]


@pytest.mark.parametrize("number", [5, 127, 200, 9_999, 20_000, 3_000_000])
@pytest.mark.parametrize(("key", "version"), KINDS)
def test_unknown_tagged_fields_stay_in_ascending_order(key, version, number):
    head, _ = split(key, version, made_up(key, version, []))
    _, tail = split(key, version, made_up(key, version, [{"node_id": 1, "host": "old.example.com", "port": 1}]))
    own = encode_uvarint(number) + b"\x02hi"
    tagged = b"\x02" + tail[1:] + own if key in TAGGED else tail[:-1] + b"\x01" + own
    for translate, expected in ((lambda *_: ("n", 2), [(1, "n", 2)]), (nothing, [])):
        rewritten = rewrite_tail(key, version, tagged, translate)
        assert len(rewritten) == len(tagged)
        assert own in rewritten
        decoded = codec.decode_response(key, version, with_length(head[4:] + rewritten))
        assert [(e["node_id"], e["host"], e["port"]) for e in decoded["node_endpoints"]] == expected
        numbers = [int(name.removeprefix("_")) for name in decoded["unknown_tags"]]
        assert numbers == sorted(numbers)
        assert len(numbers) == 2
        assert numbers[0] == number


@pytest.mark.parametrize(("key", "version"), KINDS)
def test_broken_frame_is_invalid(key, version):
    endpoints = [{"node_id": 1, "host": "kafka", "port": 9092, "rack": "r"}] * 2
    frame = made_up(key, version, endpoints, seed=8)
    for cut in range(len(frame)):
        with pytest.raises(InvalidFrame):
            rewrite_frame(key, version, frame[:cut], gateway)
        with pytest.raises(InvalidFrame):
            rewrite_frame(key, version, with_length(frame[4:cut]), gateway)
    with pytest.raises(InvalidFrame):
        rewrite_frame(key, version, with_length(frame[4:] + b"\x00"), gateway)


@pytest.mark.parametrize(
    "tail",
    [
        b"\x02\x01\x00\x00\x01\x01",  # tag 1, then 0
        b"\x02\x00\x01\x01\x00\x01\x01",  # endpoints twice
        b"\x01\x00\x02\x01\x00",  # a byte behind the array
        b"\x01\x00\x05\x02\x00\x00\x00\x01",  # an array longer than its field
        b"",
    ],
)
def test_tags_out_of_order_or_out_of_bounds_are_invalid(tail):
    with pytest.raises(InvalidFrame):
        rewrite_tail(ApiKey.FETCH, 16, tail, gateway)


@given(st.binary(max_size=80), st.sampled_from(KINDS))
def test_random_tail_is_invalid_or_keeps_its_length(tail, kind):
    with contextlib.suppress(InvalidFrame):
        assert len(rewrite_tail(*kind, tail, gateway)) == len(tail)


def test_versions_before_the_endpoints_stay_unchanged():
    frame = made_up(ApiKey.FETCH, 15, [])
    assert rewrite_frame(ApiKey.FETCH, 15, frame, gateway) == frame
    with pytest.raises(KeyError):
        rewrite_tail(ApiKey.FETCH, 15, b"\x00", gateway)
    assert [endpoints_since(key) for key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, 999)] == [10, 16, NEVER, NEVER]
