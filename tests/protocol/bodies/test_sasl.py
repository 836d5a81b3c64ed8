import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import ApiKey
from protocol.bodies import sasl
from protocol.errors import InvalidFrame
from protocol.headers import parse_request_header
from tests.protocol import codec
from tests.protocol.samples import with_length

HANDSHAKE, AUTHENTICATE = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE


def body_of(frame):
    return parse_request_header(frame, 4, len(frame), len(frame)).body_offset


def handshake(version=1, mechanism="PLAIN"):
    return codec.encode_request(HANDSHAKE, version, {"mechanism": mechanism}, 7, "client")


def authenticate(version, token):
    return codec.encode_request(AUTHENTICATE, version, {"auth_bytes": token}, 7, "client")


def authenticated(version, token, error_code=0, error_message=None):
    values = {"error_code": error_code, "error_message": error_message, "auth_bytes": token}
    if version >= 1:
        values["session_lifetime_ms"] = 3_600_000
    return codec.encode_response(AUTHENTICATE, version, values)


@pytest.mark.parametrize("version", [0, 1])
def test_handshake_is_read(version):
    frame = handshake(version, "SCRAM-SHA-512")
    assert sasl.read_handshake_request(frame, body_of(frame)) == "SCRAM-SHA-512"
    answer = codec.encode_response(HANDSHAKE, version, {"error_code": 33, "mechanisms": ["PLAIN", "GSSAPI"]})
    assert sasl.read_handshake_response(answer) == (33, ("PLAIN", "GSSAPI"))


@pytest.mark.parametrize("version", [0, 1, 2])
@given(token=st.binary(max_size=300))
def test_tokens_are_read(version, token):
    frame = authenticate(version, token)
    assert sasl.read_authenticate_request(version, frame, body_of(frame)) == token
    assert sasl.read_authenticate_response(version, authenticated(version, token)) == (0, "", token)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("message", [None, "", "Authentication failed: Invalid username or password"])
def test_refusal_is_read(version, message):
    assert sasl.read_authenticate_response(version, authenticated(version, b"", 58, message)) == (58, message or "", b"")


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("mechanisms", [[], ["PLAIN", "SCRAM-SHA-512"]])
def test_refused_mechanism_names_others(version, mechanisms):
    answer = codec.encode_response(HANDSHAKE, version, {"error_code": 0, "mechanisms": ["GSSAPI"]}, 7)
    refusal = codec.encode_response(HANDSHAKE, version, {"error_code": 33, "mechanisms": mechanisms}, 7)
    assert sasl.refuse_mechanism(answer, mechanisms) == refusal


@pytest.mark.parametrize("version", [0, 1, 2])
def test_refused_token_has_a_message(version):
    refusal = sasl.refuse_token(version, authenticated(version, b"v=proof"), "no")
    values = {"error_code": 58, "error_message": "no", "auth_bytes": b""} | ({"session_lifetime_ms": 0} if version else {})
    assert refusal == codec.encode_response(AUTHENTICATE, version, values)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_truncated_or_too_long_request_is_invalid(version):
    frame = authenticate(version, b"\0alice\0secret")
    body = body_of(frame)
    for end in range(body, len(frame)):
        with pytest.raises(InvalidFrame):
            sasl.read_authenticate_request(version, frame[:end], body)
    with pytest.raises(InvalidFrame, match="1 bytes follow"):
        sasl.read_authenticate_request(version, frame + b"\0", body)


def test_truncated_handshake_is_invalid():
    frame = handshake()
    body = body_of(frame)
    for end in range(body, len(frame)):
        with pytest.raises(InvalidFrame):
            sasl.read_handshake_request(frame[:end], body)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_response_truncated_within_its_token_is_invalid(version):
    frame = authenticated(version, b"v=proof")
    for end in range(8, frame.index(b"proof") + 5):
        with pytest.raises(InvalidFrame):
            sasl.read_authenticate_response(version, with_length(frame[4:end]))


def test_messages_quote_no_token():
    frame = authenticate(1, b"\0alice\0secret")
    with pytest.raises(InvalidFrame) as caught:
        sasl.read_authenticate_request(1, frame[:-3], body_of(frame))
    assert "secret" not in str(caught.value)
