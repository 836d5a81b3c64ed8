import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import APIS, ApiKey, response_header_version
from protocol.errors import Incomplete, InvalidFrame
from protocol.throttle import MAX_THROTTLE_MS, patch_throttle, read_throttle, throttle_offset
from tests.protocol import codec
from tests.protocol.golden import GOLDEN, Golden
from tests.protocol.samples import response_frame, with_header_tag, with_length

PATCHED = 123_456_789
VERSIONS = [
    (key, version)
    for key in sorted(codec.KEYS)
    for version in range(min(APIS[key].max_version, codec.response_class(key).max_version) + 1)
]


def assert_the_patch_changes_the_throttle_time_alone(key, version, frame):
    before = codec.decode_response(key, version, frame)
    offset = throttle_offset(key, version, frame, 0, len(frame))
    if "throttle_time_ms" not in before:
        assert offset == -1
        return
    assert read_throttle(frame, offset) == before["throttle_time_ms"]
    patched = bytearray(frame)
    patch_throttle(patched, offset, PATCHED)
    assert codec.decode_response(key, version, bytes(patched)) == before | {"throttle_time_ms": PATCHED}


@pytest.mark.parametrize("golden", GOLDEN, ids=str)
def test_real_frame_changes_only_in_its_throttle_time(golden: Golden):
    assert_the_patch_changes_the_throttle_time_alone(golden.api_key, golden.version, golden.frame)


def test_real_frames_include_throttle_times():
    slow = [golden for golden in GOLDEN if golden.client == "golden-slow"]
    offsets = [(golden, throttle_offset(golden.api_key, golden.version, golden.frame, 0, 10_000)) for golden in slow]
    times = [read_throttle(golden.frame, offset) for golden, offset in offsets if offset >= 0]
    assert len(times) > 60
    assert min(times) > 0


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=lambda value: str(value))
def test_encoded_frames_change_only_in_their_throttle_time(key, version):
    rng = random.Random(key << 8 | version)
    values = {"error_code": 0} if key == ApiKey.API_VERSIONS else {}
    for _ in range(3):
        frame = response_frame(key, version, rng, **values)
        assert_the_patch_changes_the_throttle_time_alone(key, version, frame)
        if response_header_version(key, version) == 1:
            tagged = with_header_tag(frame)
            plain = throttle_offset(key, version, frame, 0, len(frame))
            assert throttle_offset(key, version, tagged, 0, len(tagged)) == (plain if plain < 0 else plain + 5)


def test_unsupported_api_versions_answer_has_no_throttle():
    answer = codec.encode_response(ApiKey.API_VERSIONS, 0, {"error_code": 35, "api_keys": []})
    for version in range(5):
        assert throttle_offset(ApiKey.API_VERSIONS, version, answer, 0, len(answer)) == -1


@pytest.mark.parametrize("golden", [g for g in GOLDEN if g.version >= APIS[g.api_key].throttle_since], ids=str)
def test_truncated_frame_is_incomplete_or_invalid(golden: Golden):
    """A buffer that ends before the field is incomplete. A frame that ends there is invalid."""
    key, version, _, frame = golden
    offset = throttle_offset(key, version, frame, 0, len(frame))
    after = offset + 4
    for cut in range(after):
        with pytest.raises(Incomplete):
            throttle_offset(key, version, frame, 0, cut)
        if cut >= 4:
            with pytest.raises(InvalidFrame):
                throttle_offset(key, version, with_length(frame[4:cut]), 0, cut)
    assert throttle_offset(key, version, frame, 0, after) == offset


def test_most_apis_need_only_the_first_14_bytes():
    golden = next(each for each in GOLDEN if each.api_key == ApiKey.METADATA and each.version == 12)
    assert throttle_offset(ApiKey.METADATA, 12, golden.frame, 0, 14) == 9


def test_offsets_are_absolute():
    frame = response_frame(ApiKey.FETCH, 12, random.Random(1))
    assert throttle_offset(ApiKey.FETCH, 12, b"before" + frame + b"after", 6, 6 + len(frame)) == 6 + 9


def test_bytes_of_the_next_frame_are_not_used():
    short = b"\x00\x00\x00\x06\x00\x00\x00\x01\x00\x00"
    with pytest.raises(InvalidFrame):
        throttle_offset(ApiKey.HEARTBEAT, 3, short + b"\x00" * 40, 0, 50)


def test_longest_throttle_time_is_that_of_kafka():
    buf = bytearray(4)
    patch_throttle(buf, 0, 2**31)
    assert buf == b"\x7f\xff\xff\xff"


@given(st.integers(-(2**40), 2**40))
def test_patched_time_is_clamped_to_its_field(ms):
    buf = bytearray(8)
    patch_throttle(buf, 4, ms)
    assert read_throttle(buf, 4) == min(max(ms, 0), MAX_THROTTLE_MS)
    assert buf[:4] == bytes(4)
