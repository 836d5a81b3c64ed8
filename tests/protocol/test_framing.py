from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Incomplete, InvalidFrame
from protocol.framing import MAX_HEAD_BYTES, MIN_REQUEST_BYTES, MIN_RESPONSE_BYTES, Framing
from protocol.headers import parse_request_header


def framing(min_bytes=MIN_REQUEST_BYTES, max_bytes=1_000_000):
    return Framing(min_bytes=min_bytes, max_bytes=max_bytes)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (8, None),
        (1_000_000, None),
        (7, "frame_too_short"),
        (0, "frame_too_short"),
        (-1, "negative_length"),
        (-(2**31), "negative_length"),
        (1_000_001, "frame_too_large"),
        (2**31 - 1, "frame_too_large"),
        (0x15FFFFFF, "frame_too_large"),
        (0x16030100, "tls_on_plaintext"),
        (0x16FFFFFF, "tls_on_plaintext"),
        (0x17000000, "frame_too_large"),
        (int.from_bytes(b"PROX", "big"), "proxy_header"),
        (int.from_bytes(b"\r\n\r\n", "big"), "proxy_header"),
        *(
            (int.from_bytes(word[:4].encode(), "big"), "http")
            for word in ("GET ", "HEAD", "POST", "PUT ", "DELETE", "OPTIONS", "CONNECT", "PATCH", "TRACE", "PRI ", "HTTP/1.1")
        ),
        (int.from_bytes(b"GET/", "big"), "frame_too_large"),
    ],
)
def test_length_of_a_frame_is_checked(size, reason):
    for check in (framing().check, lambda size: framing().hold(b"xx" + size.to_bytes(4, "big", signed=True), 2)):
        if reason is None:
            check(size)
            continue
        with pytest.raises(InvalidFrame) as caught:
            check(size)
        assert caught.value.reason == reason
        assert str(size) in str(caught.value)


def test_limit_names_its_key():
    with pytest.raises(InvalidFrame, match=r"1000001 is above the limit of 1000000 bytes \(connections.max_frame_bytes\)"):
        framing().check(1_000_001)


def test_tls_like_length_is_a_frame_if_limit_allows():
    framing(max_bytes=2**31 - 1).check(0x16030100)


def test_shortest_response_is_a_correlation_id():
    framing(min_bytes=MIN_RESPONSE_BYTES).check(4)


def test_framing_begins_between_frames_and_holds_nothing():
    position = framing()
    assert (position.head, position.skip) == (b"", 0)


def test_held_bytes_precede_only_the_next_chunk():
    position = framing()
    assert position.join(b"abc") == b"abc"
    position.hold(b"..ab", 2)
    assert position.head == b"ab"
    assert position.join(b"cd") == b"abcd"
    assert position.head == b""
    assert position.join(b"ef") == b"ef"


def test_held_bytes_are_of_one_connection():
    one, other = framing(), framing()
    one.hold(b"ab", 0)
    one.join(b"cd")
    one.hold(b"ef", 0)
    assert (bytes(other.head), bytes(framing().head)) == (b"", b"")


def test_head_is_not_joined_before_wanted_bytes():
    position = framing()
    position.hold(b"..ab", 2, 7)
    assert [position.join(b"c"), position.join(b"d")] == [b"", b""]
    assert position.head == b"abcd"
    assert position.join(b"efg") == b"abcdefg"
    assert position.join(b"hi") == b"hi"


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.data())
def test_header_is_found_in_any_chunking(names, data):
    frames = b"".join(request_header(name) for name in names)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(frames) - 1, 1)), max_size=20) | st.just(set(range(len(frames))))))
    position, found = framing(), []
    for start, end in pairwise([0, *cuts, len(frames)]):
        chunk = position.join(frames[start:end])
        pos = 0
        while pos < len(chunk):
            try:
                header = parse_request_header(chunk, pos + 4, len(chunk))
            except Incomplete as cut:
                position.hold(chunk, pos, cut.wanted)
                break
            found.append(header.client_id)
            pos = header.body_offset
    assert found == [name.decode("utf-8", "replace") for name in names]


def request_header(name):
    """Return a Heartbeat that is only a header with a tagged field."""
    head = b"\0\x0c\0\4" + bytes(4) + len(name).to_bytes(2, "big") + name + b"\1\7\3abc"
    return len(head).to_bytes(4, "big") + head


@pytest.mark.parametrize("seen", [1, 2, 3])
def test_partial_length_is_not_checked(seen):
    position = framing()
    position.hold(b"\xff\xff\xff\xff"[:seen], 0)
    assert position.head == b"\xff\xff\xff\xff"[:seen]


def test_held_head_is_bounded():
    length = (900_000).to_bytes(4, "big")
    position = framing()
    position.hold(length + bytes(MAX_HEAD_BYTES - 4), 0)
    assert len(position.head) == MAX_HEAD_BYTES
    with pytest.raises(InvalidFrame) as caught:
        position.hold(length + bytes(MAX_HEAD_BYTES - 3), 0)
    assert caught.value.reason == "head_too_long"


def test_bytes_before_the_head_do_not_count_for_its_bound():
    chunk = bytes(100) + (900_000).to_bytes(4, "big") + bytes(256 * 1024 - 4)
    framing().hold(chunk, 100)
    with pytest.raises(InvalidFrame, match="incomplete after 262145 bytes"):
        framing().hold(chunk + b"x", 100)


def test_mutable_chunk_may_be_held():
    position = framing()
    chunk = bytearray(b"abc")
    position.hold(chunk, 1)
    chunk[1] = 0
    assert position.head == b"bc"
