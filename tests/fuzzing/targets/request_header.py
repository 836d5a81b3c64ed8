"""A request header raises declared errors only, is complete or not by its bytes alone, and survives a round trip."""

import random

from protocol.api_keys import APIS
from protocol.errors import Incomplete, InvalidFrame, UnsupportedVersion
from protocol.headers import RequestHeader, encode_request, parse_request_header
from tests.protocol import codec


def check(data: bytes) -> None:
    if len(data) < 2:
        return
    cut, data = int.from_bytes(data[:2], "big") % len(data), data[2:]
    whole = _parse(data, len(data), len(data))
    assert whole is not Incomplete or len(data) < 10, "the whole frame has arrived"
    part = _parse(data, min(cut, len(data)), len(data))
    assert part is Incomplete or part == whole
    endless = _parse(data, len(data), len(data) + 100_000)
    if isinstance(whole, RequestHeader):
        assert whole.body_offset <= len(data)
        assert endless == whole
        _check_round_trip(data, whole)


def _parse(data: bytes, seen: int, end: int) -> RequestHeader | type[Exception]:
    try:
        return parse_request_header(data, 0, seen, end)
    except (Incomplete, InvalidFrame, UnsupportedVersion) as error:
        return type(error)


def _check_round_trip(data: bytes, header: RequestHeader) -> None:
    frame = encode_request(header, data[header.body_offset :])
    read = parse_request_header(frame, 4, len(frame), len(frame))
    if "\ufffd" not in (header.client_id or ""):  # replaced bytes become longer, and may be cut
        assert read.moved(-read.body_offset) == header.moved(-header.body_offset)
    assert frame[read.body_offset :] == data[header.body_offset :]
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


def seeds():
    rng = random.Random(1)
    for key in sorted(codec.KEYS):
        if APIS[key].on_broker_listener:
            for version in {0, APIS[key].max_version}:
                if version <= codec.request_class(key).max_version:
                    message = codec.request_class(key)(version=version)
                    message.with_header(correlation_id=rng.randrange(1 << 20), client_id=rng.choice(("etl", "", "ä" * 90)))
                    try:
                        yield b"\0\7" + bytes(message.encode(header=True, framed=False))[:120]
                    except (TypeError, ValueError, AttributeError):  # some messages have no defaults
                        continue
