import random

import pytest

from protocol.api_keys import ApiKey
from protocol.bodies.addresses import rewrite_metadata, rewrite_metadata_front
from protocol.errors import Incomplete, InvalidFrame
from tests.protocol import codec
from tests.protocol.bodies.addressing import TRANSLATIONS, gateway, same
from tests.protocol.golden import golden
from tests.protocol.samples import response_frame, with_header_tag, with_length

BROKERS = [{"node_id": n, "host": f"kafka-{n}", "port": 9092 + n} for n in range(5)]
GOLDEN = golden(ApiKey.METADATA)


def made_up(version):
    brokers = [broker | ({"rack": "r" if broker["node_id"] else None} if version else {}) for broker in BROKERS]
    return response_frame(ApiKey.METADATA, version, random.Random(version), brokers=brokers)


FRAMES = [(g.version, g.frame) for g in GOLDEN] + [(version, made_up(version)) for version in range(14)]


@pytest.mark.parametrize(("version", "frame"), FRAMES)
@pytest.mark.parametrize("translate", TRANSLATIONS)
def test_only_addresses_change(version, frame, translate):
    expected = codec.decode_response(ApiKey.METADATA, version, frame)
    kept = []
    for broker in expected["brokers"]:
        address = translate(broker["node_id"], broker["host"], broker["port"])
        if address:
            kept.append(broker | {"host": address[0], "port": address[1]})
    rewritten = rewrite_metadata(version, frame, translate)
    assert codec.decode_response(ApiKey.METADATA, version, rewritten) == expected | {"brokers": kept}
    assert int.from_bytes(rewritten[:4], "big") == len(rewritten) - 4
    if translate is same:
        assert rewritten == frame


def test_unknown_tagged_fields_survive():
    """In the header, in a broker and at the end."""
    frame = with_header_tag(made_up(12))
    broker = frame.index(b"\x08kafka-0") + 8 + 4 + 1  # behind host, port and rack
    assert frame[broker] == 0
    tagged = with_length(frame[4:broker] + b"\x01\x07\x02hi" + frame[broker + 1 : -1] + b"\x01\x2a\x01!")
    assert rewrite_metadata(12, tagged, same) == tagged
    rewritten = rewrite_metadata(12, tagged, gateway)
    assert b"\x01\x63\x03abc" in rewritten[:20]
    assert b"\x01\x07\x02hi" in rewritten
    assert rewritten.endswith(b"\x01\x2a\x01!")


def test_host_over_127_bytes_gets_a_longer_length():
    frame = made_up(12)
    rewritten = rewrite_metadata(12, frame, lambda node_id, host, port: ("h" * 200, 1))
    assert {broker["host"] for broker in codec.decode_response(ApiKey.METADATA, 12, rewritten)["brokers"]} == {"h" * 200}


@pytest.mark.parametrize("real", GOLDEN, ids=str)
def test_truncated_frame_is_invalid_or_rewritten(real):
    for cut in range(len(real.frame)):
        with pytest.raises(InvalidFrame):
            rewrite_metadata(real.version, real.frame[:cut], gateway)
        try:
            rewrite_metadata(real.version, with_length(real.frame[4:cut]), gateway)
        except InvalidFrame:
            continue
        assert cut >= real.frame.index(b"127.0.0.1") + 13


@pytest.mark.parametrize(("version", "frame"), FRAMES)
@pytest.mark.parametrize("translate", TRANSLATIONS)
def test_front_and_the_rest_are_the_rewritten_frame(version, frame, translate):
    """The frame may stand anywhere in the buffer, and the arrived bytes may end anywhere."""
    expected = rewrite_metadata(version, frame, translate)
    for before in (b"", b"before"):
        arrived = []
        for seen in range(len(before), len(before) + len(frame) + 1):
            buf = before + frame[: seen - len(before)]
            try:
                front, behind = rewrite_metadata_front(version, buf, len(before), seen, translate)
            except Incomplete:
                continue
            arrived.append(behind)
            assert front + frame[behind - len(before) :] == expected
        assert set(arrived) == {arrived[0]}
        assert len(arrived) == len(before) + len(frame) + 1 - arrived[0], "no byte behind the brokers is awaited"


def test_front_of_a_frame_that_grows_too_long_is_invalid():
    frame = (2**31 - 1).to_bytes(4, "big") + made_up(12)[4:]
    front, behind = rewrite_metadata_front(12, frame, 0, len(frame), same)
    assert front == frame[:behind]
    with pytest.raises(InvalidFrame):
        rewrite_metadata_front(12, frame, 0, len(frame), gateway)
