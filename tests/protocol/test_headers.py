import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import APIS, NEVER, ApiKey
from protocol.errors import Incomplete, InvalidFrame, UnsupportedVersion
from protocol.headers import RequestHeader, encode_request, parse_request_header
from tests.protocol import codec

FOR_CLIENTS = sorted(key for key, spec in APIS.items() if spec.on_broker_listener and key in codec.KEYS)


def header_bytes(key=3, version=1, correlation_id=5, client_id=b"me", tags=b""):
    fixed = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
    size = -1 if client_id is None else len(client_id)
    text = size.to_bytes(2, "big", signed=True) + (client_id or b"")
    return fixed + correlation_id.to_bytes(4, "big", signed=True) + text + tags


@pytest.mark.parametrize("key", FOR_CLIENTS, ids=lambda key: APIS[key].name)
@pytest.mark.parametrize("client_id", [None, "", "etl-läufer"])
def test_body_offset_matches_an_independent_encoder(key, client_id):
    for version in (0, *range(1, min(APIS[key].max_version, codec.request_class(key).max_version) + 1)):
        message = codec.request_class(key)(version=version)
        message.with_header(correlation_id=77, client_id=client_id)
        frame = bytes(message.encode(header=True, framed=True))
        body = len(frame) - len(message.encode())
        assert parse_request_header(frame, 4, len(frame), len(frame)) == RequestHeader(key, version, 77, client_id, body)


def test_tagged_fields_of_the_header_are_skipped():
    header = header_bytes(version=9, tags=b"\x02\x00\x01x\x05\x02yz")
    assert parse_request_header(header + b"body", 0, len(header) + 4).body_offset == len(header)


def test_client_id_that_is_not_utf_8_is_replaced():
    assert parse_request_header(header_bytes(client_id=b"a\xff"), 0, 99, 99).client_id == "a\ufffd"


def test_encoded_surrogate_becomes_three_replacements():
    """Java's brokers replace it by one."""
    assert parse_request_header(header_bytes(client_id=b"a\xed\xa0\x80"), 0, 99, 99).client_id == "a\ufffd\ufffd\ufffd"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_type_and_offset_is_read(kind):
    buf = kind(b"junk" + header_bytes() + b"rest")
    assert parse_request_header(buf, 4, len(buf)) == RequestHeader(3, 1, 5, "me", 4 + 12)


@pytest.mark.parametrize("header", [header_bytes(), header_bytes(version=12, tags=b"\x01\x07\x03abc")])
def test_truncated_header_is_incomplete_or_invalid(header):
    for cut in range(len(header)):
        with pytest.raises(Incomplete):
            parse_request_header(header, 0, cut)
        with pytest.raises(Incomplete):
            parse_request_header(header[:cut], 0, cut, len(header))
        with pytest.raises(InvalidFrame):
            parse_request_header(header, 0, len(header), cut)


@pytest.mark.parametrize(
    ("key", "version", "reason"),
    [
        (999, 0, "unknown_api"),
        (-1, 0, "unknown_api"),
        (ApiKey.VOTE, 0, "unknown_api"),
        (ApiKey.METADATA, 14, "unsupported_version"),
        (ApiKey.METADATA, -1, "unsupported_version"),
        (ApiKey.API_VERSIONS, -1, "unsupported_version"),
    ],
)
def test_unsupported_api_or_version_is_refused(key, version, reason):
    with pytest.raises(UnsupportedVersion) as refused:
        parse_request_header(header_bytes(key, version), 0, 99)
    assert refused.value.reason == reason


def test_newer_api_versions_request_is_read():
    header = parse_request_header(header_bytes(ApiKey.API_VERSIONS, 30, 9, tags=b"\x00"), 0, 99)
    assert (header.api_version, header.correlation_id) == (30, 9)


@pytest.mark.parametrize(
    "header",
    [
        header_bytes()[:8] + b"\xff\xfe" + b"x" * 9,
        header_bytes(version=12, tags=b"\x21" + b"\x01\x00" * 40),
        header_bytes(version=12, tags=b"\x01\x01\xff\x7f" + b"x" * 20_000),
        header_bytes(version=12, tags=b"\xff\xff\xff\xff\xff\x01"),
    ],
    ids=["length -2", "33 tags", "a tag of 16383 bytes", "a varint of 6 bytes"],
)
def test_senseless_headers_are_invalid(header):
    with pytest.raises(InvalidFrame):
        parse_request_header(header, 0, len(header))


@given(st.binary(max_size=60), st.integers(0, 60))
def test_random_bytes_give_header_or_known_error(data, frame_end):
    try:
        header = parse_request_header(data, 0, len(data), frame_end)
    except (Incomplete, InvalidFrame, UnsupportedVersion):
        return
    assert header.body_offset <= min(len(data), frame_end)
    assert NEVER > header.api_version >= 0


def test_headers_are_compared_by_value_and_not_hashed():
    header = RequestHeader(3, 1, 5, "me", 16)
    assert header == RequestHeader(3, 1, 5, "me", 16) != header.moved(1)
    assert header != (3, 1, 5, "me", 16)
    assert repr(header) == "RequestHeader(3, 1, 5, 'me', 16)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(header)


@pytest.mark.parametrize("client_id", ["etl", "", "ä", None])
@pytest.mark.parametrize(("key", "version"), [(ApiKey.METADATA, 4), (ApiKey.METADATA, 12), (ApiKey.API_VERSIONS, 0)])
def test_encoded_header_survives_round_trip(key, version, client_id):
    header = RequestHeader(key, version, 7, client_id, 0)
    frame = encode_request(header, b"body")
    read = parse_request_header(frame, 4, len(frame))
    assert read.moved(-read.body_offset) == header
    assert frame[read.body_offset :] == b"body"
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


def test_encoded_client_id_is_cut_to_header_length():
    grown = b"\xff" * 20_000
    header = RequestHeader(ApiKey.METADATA, 4, 7, grown.decode("utf-8", "replace"), 0)
    frame = encode_request(header)
    assert len(frame) == 4 + 10 + 32_767
    assert parse_request_header(frame, 4, len(frame)).client_id.startswith("\ufffd" * 10_922)


@pytest.mark.parametrize(
    ("version", "frame"), [(8, b"\0\0\0\x0c\0\3\0\x08\0\0\0\7\0\2me"), (9, b"\0\0\0\x0d\0\3\0\x09\0\0\0\7\0\2me\0")]
)
def test_encoded_header_has_tags_since_flexible_versions(version, frame):
    assert encode_request(RequestHeader(ApiKey.METADATA, version, 7, "me", 0)) == frame


def test_tags_up_to_their_limits_are_read():
    many = header_bytes(version=12, tags=b"\x20" + b"\x01\x00" * 32)
    assert parse_request_header(many, 0, len(many)).body_offset == len(many)
    large = header_bytes(version=12, tags=b"\x01\x01\x80\x20" + b"x" * 4_096)
    assert parse_request_header(large, 0, len(large)).body_offset == len(large)
    with pytest.raises(InvalidFrame, match="a tagged field of 4097 bytes"):
        parse_request_header(header_bytes(version=12, tags=b"\x01\x01\x81\x20"), 0, 9_999)


def test_overrun_names_the_excess_bytes():
    with pytest.raises(InvalidFrame, match="ends 1 bytes beyond its frame"):
        parse_request_header(header_bytes(), 0, 12, 9)
