import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.cursor import Reader
from protocol.encoding import encode_message, encode_string, encode_utf8, encode_uvarint
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


@pytest.mark.parametrize("compact", [True, False])
def test_string_over_kafkas_maximum_is_not_written(compact):
    with pytest.raises(InvalidFrame, match=r"^a string of 32768 bytes exceeds Kafka's limit of 32767$") as invalid:
        encode_string("é" * 2**14, compact=compact)
    assert invalid.value.reason == "bad_count"


@pytest.mark.parametrize("compact", [True, False])
def test_string_that_no_answer_could_repeat_is_invalid(compact):
    """Each byte that is not UTF-8 becomes a character of three bytes."""
    fits = encode_utf8(b"\xff" * 10_922 + b"a", compact=compact)
    assert encode_string(reader(fits, compact=compact).string(), compact=compact)
    with pytest.raises(InvalidFrame, match=r"a string of 10923 bytes is not UTF-8\. As UTF-8 it has 32769") as invalid:
        reader(encode_utf8(b"\xff" * 10_923, compact=compact), compact=compact).string()
    assert invalid.value.reason == "bad_count"


@pytest.mark.parametrize("size", [10_922, 10_923, 2**15 - 1])
def test_long_string_survives_round_trip(size):
    assert reader(encode_string("a" * size, compact=True)).string() == "a" * size


@pytest.mark.parametrize("compact", [True, False])
def test_long_message_is_cut(compact):
    message = encode_message("a" + "é" * 2**14, compact=compact)
    assert reader(message, compact=compact).string() == "a" + "é" * (2**14 - 1)
    odd = encode_message("é" * 2**14, compact=compact)
    assert reader(odd, compact=compact).string() == "é" * (2**14 - 1)
    assert reader(encode_message(None, compact=compact), compact=compact).string() is None


@pytest.mark.parametrize(("data", "compact"), [(b"\x00", True), (b"\xff\xff", False)])
def test_null_string_is_not_empty(data, compact):
    assert reader(data, compact=compact).string() is None


@pytest.mark.parametrize(("data", "compact", "wide"), [(b"\0", True, True), (b"\xff\xff", False, False)])
def test_length_that_is_null_is_invalid(data, compact, wide):
    with pytest.raises(InvalidFrame, match=f"the field before byte {len(data)} is null") as invalid:
        reader(data, compact=compact).length(wide=wide)
    assert invalid.value.reason == "bad_count"


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


def test_plain_lengths_are_the_default():
    assert Reader(b"\0\1a", 0, 3, 3).string() == "a"
    assert Reader(b"\0\0\0\2ab", 0, 6, 6).bytes_field() == b"ab"
    assert Reader(b"\xff\xff\xff\xff", 0, 4, 4).bytes_field() == b""


def test_longest_string_of_kafka_is_read():
    data = encode_string("x" * 32_767, compact=False)
    assert len(reader(data, compact=False).string()) == 32_767


def test_frame_of_a_correlation_id_is_whole():
    found = Reader.of_frame(b"..\0\0\0\4abcdef", 2, 12)
    assert (found.pos, found.seen, found.end) == (6, 10, 10)
    with pytest.raises(Incomplete):
        Reader.of_frame(b"..\0\0\0", 2, 5)


@pytest.mark.parametrize(("version", "compact", "pos"), [(0, False, 8), (1, True, 9)])
def test_response_reader_stands_at_the_body(version, compact, pos):
    frame = b"\0\0\0\6abcd\0x"
    for found in (
        Reader.of_response(frame, 0, 10, header_version=version),
        Reader.of_whole_response(frame, header_version=version),
    ):
        assert (found.pos, found.compact) == (pos, compact)


def test_request_has_a_limit_of_elements():
    found = Reader.of_whole_request(b"head\0\0\0\5abcde", 4, compact=False)
    assert (found.elements_left, found.compact, found.seen, found.end) == (5_000, False, 13, 13)
    assert found.count() == 5
    assert found.elements_left == 4_995


def test_elements_and_tags_up_to_the_limit_are_read():
    found = reader(b"\x03\0\0\x02\0\0\0\0\0\0\0")
    found.elements_left = 4
    assert found.count() == 2
    found.pos = 3
    found.skip_tags()
    assert found.elements_left == 0
    with pytest.raises(InvalidFrame, match="an array of 1 elements, but this request may have only 0 more") as invalid:
        found.spend(1)
    assert invalid.value.reason == "too_many_elements"


@pytest.mark.parametrize(("data", "end"), [(b"\0\0\0\2aaaabbbbc", 12), (b"\xff\xff\xff\xffc", 4), (b"\0\0\0\0c", 4)])
def test_array_of_integers_is_skipped(data, end):
    found = reader(data, compact=False)
    found.skip_int32s()
    assert found.pos == end


@pytest.mark.parametrize(("data", "end"), [(b"\0\0\0\2abc", 6), (b"\xff\xff\xff\xffc", 4), (b"\0\0\0\0c", 4)])
def test_byte_string_is_skipped(data, end):
    found = reader(data, compact=False)
    found.skip_bytes()
    assert found.pos == end


def test_integers_are_signed():
    found = Reader(b"\xff\xfe\xff\xff\xff\xfd\xfc", 0, 7, 7)
    assert (found.int16(), found.int32(), found.byte()) == (-2, -3, 0xFC)


@pytest.mark.parametrize(
    ("data", "read", "message"),
    [
        (b"abcd", lambda found: found.skip(5), "a field ends at byte 6, 1 beyond its frame"),
        (b"\x05ab", lambda found: found.count(), "a count of 4, but the frame has only 2 bytes left"),
        (b"\x03ab", lambda found: found.tag_count(), "3 tagged fields, but the frame has only 2 bytes left"),
        (b"\x80\x80\x80\x80\x80", lambda found: found.uvarint(), "the varint before byte 6 is longer"),
    ],
)
def test_errors_name_offsets_within_the_frame(data, read, message):
    found = Reader(b"." + data, 1, len(data) + 1, len(data) + 1, compact=True)
    with pytest.raises(InvalidFrame, match=message):
        read(found)
