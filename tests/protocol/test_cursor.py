import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.bodies.addresses import encode_string, encode_uvarint
from protocol.cursor import Reader
from protocol.errors import Incomplete, InvalidFrame


def reader(data, end=None, *, compact=True):
    return Reader(data, 0, len(data), len(data) if end is None else end, compact=compact)


@given(st.integers(0, 2**32 - 1))
def test_varint_survives_round_trip(value):
    data = encode_uvarint(value)
    assert reader(data).uvarint() == value
    for cut in range(len(data)):
        with pytest.raises(Incomplete):
            reader(data[:cut], len(data)).uvarint()
        with pytest.raises(InvalidFrame):
            reader(data[:cut]).uvarint()


@pytest.mark.parametrize("data", [b"\x80\x80\x80\x80\x10", b"\xff\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x80\x00"])
def test_varint_over_32_bits_or_5_bytes_is_invalid(data):
    with pytest.raises(InvalidFrame) as invalid:
        reader(data).uvarint()
    assert invalid.value.reason == "bad_varint"


@given(st.text(max_size=300), st.booleans())
def test_string_survives_round_trip(text, compact):
    data = encode_string(text, compact=compact)
    assert reader(data, compact=compact).string() == text
    stepped = reader(data, compact=compact)
    stepped.skip_string()
    assert stepped.pos == len(data)


@pytest.mark.parametrize(("data", "compact"), [(b"\x00", True), (b"\xff\xff", False)])
def test_null_string_is_not_empty(data, compact):
    assert reader(data, compact=compact).string() is None


def test_string_over_kafkas_maximum_is_invalid_at_once():
    with pytest.raises(InvalidFrame):
        reader(encode_uvarint(2**15 + 1), 1 << 20).string()


@pytest.mark.parametrize(
    ("data", "compact"), [(b"\xff\xff\xff\xfe", False), (b"\x00\x00\x00\x09abcd", False), (b"\x06abcd", True)]
)
def test_count_below_null_or_beyond_the_frame_is_invalid(data, compact):
    with pytest.raises(InvalidFrame) as invalid:
        reader(data, compact=compact).count()
    assert invalid.value.reason == "bad_count"


def test_tagged_fields_are_skipped():
    stepped = reader(b"\x02\x00\x02ab\x80\x01\x00rest")
    stepped.skip_tags()
    assert stepped.pos == 8


@pytest.mark.parametrize("length", [-1, 0, 3])
def test_frame_shorter_than_a_header_is_invalid(length):
    with pytest.raises(InvalidFrame):
        Reader.of_frame(length.to_bytes(4, "big", signed=True) + b"abc", 0, 7)


def test_partial_length_is_incomplete():
    with pytest.raises(Incomplete):
        Reader.of_frame(b"\x00\x00\x00", 0, 3)


@pytest.mark.parametrize("frame", [b"", b"\x00\x00\x00\x04abc", b"\x00\x00\x00\x04abcde"])
def test_buffer_of_other_than_one_frame_is_invalid(frame):
    with pytest.raises(InvalidFrame):
        Reader.of_whole_response(frame, header_version=0)


def test_take_stays_within_buffer_and_frame():
    reader = Reader(memoryview(b"abcdef"), 1, 5, 6)
    assert (reader.take(3), reader.take(0), reader.pos) == (b"bcd", b"", 4)
    with pytest.raises(Incomplete):
        reader.take(2)
    with pytest.raises(InvalidFrame):
        reader.take(3)
