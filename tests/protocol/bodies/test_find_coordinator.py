import pytest

from protocol.api_keys import ApiKey
from protocol.bodies import find_coordinator
from protocol.errors import InvalidFrame
from protocol.headers import parse_request_header
from tests.protocol import codec
from tests.protocol.bodies.addressing import TRANSLATIONS, gateway, nothing, same
from tests.protocol.golden import golden
from tests.protocol.samples import with_header_tag, with_length

GOLDEN = golden(ApiKey.FIND_COORDINATOR)
NO_NODE = {"node_id": -1, "host": "", "port": -1}
KNOWN = {"node_id": 3, "host": "kafka-3", "port": 9095, "error_code": 0, "error_message": None}
UNKNOWN = NO_NODE | {"error_code": 15, "error_message": "none yet"}


def made_up(version, *found):
    if version >= 4:
        return codec.encode_response(
            ApiKey.FIND_COORDINATOR, version, {"coordinators": [each | {"key": "ä" * 100} for each in found]}
        )
    values = {name: value for name, value in found[0].items() if version or name != "error_message"}
    return codec.encode_response(ApiKey.FIND_COORDINATOR, version, values)


FRAMES = [(g.version, g.frame) for g in GOLDEN]
FRAMES += [(version, made_up(version, KNOWN, UNKNOWN, KNOWN | {"node_id": 4})) for version in range(7)]
FRAMES += [(version, made_up(version, UNKNOWN)) for version in range(7)]


def translated(coordinator, translate):
    if not coordinator["host"]:
        return coordinator
    address = translate(coordinator["node_id"], coordinator["host"], coordinator["port"])
    return coordinator | ({"host": address[0], "port": address[1]} if address else NO_NODE | {"error_code": 15})


@pytest.mark.parametrize(("version", "frame"), FRAMES)
@pytest.mark.parametrize("translate", TRANSLATIONS)
def test_only_addresses_change(version, frame, translate):
    before = codec.decode_response(ApiKey.FIND_COORDINATOR, version, frame)
    if version >= 4:
        expected = before | {"coordinators": [translated(each, translate) for each in before["coordinators"]]}
    else:
        expected = translated(before, translate)
    rewritten = find_coordinator.rewrite_response(version, frame, translate)
    assert codec.decode_response(ApiKey.FIND_COORDINATOR, version, rewritten) == expected
    if translate is same:
        assert rewritten == frame
        if version >= 3:
            tagged = with_header_tag(frame)
            assert find_coordinator.rewrite_response(version, tagged, same) == tagged


@pytest.mark.parametrize("version", range(7))
def test_coordinator_without_gateway_address_is_unavailable(version):
    rewritten = find_coordinator.rewrite_response(version, made_up(version, KNOWN), nothing)
    decoded = codec.decode_response(ApiKey.FIND_COORDINATOR, version, rewritten)
    (found,) = decoded["coordinators"] if version >= 4 else [decoded]
    assert found.items() >= (NO_NODE | {"error_code": 15}).items()


@pytest.mark.parametrize("real", GOLDEN, ids=str)
def test_truncated_frame_is_invalid(real):
    last_address = real.frame.rindex(b"127.0.0.1") + 13
    for cut in range(len(real.frame)):
        with pytest.raises(InvalidFrame):
            find_coordinator.rewrite_response(real.version, real.frame[:cut], gateway)
        if cut < last_address:
            with pytest.raises(InvalidFrame):
                find_coordinator.rewrite_response(real.version, with_length(real.frame[4:cut]), gateway)


def test_address_of_many_keys_is_translated_once():
    asked = []

    def translate(*address):
        asked.append(address)
        return gateway(*address)

    find_coordinator.rewrite_response(6, made_up(6, KNOWN, UNKNOWN, KNOWN, KNOWN | {"port": 1}, KNOWN), translate)
    assert asked == [(3, "kafka-3", 9095), (3, "kafka-3", 1)]


def test_known_coordinators_stay_beside_unavailable_ones():
    frame = made_up(6, KNOWN, KNOWN | {"node_id": 4}, UNKNOWN, KNOWN | {"node_id": 4})
    rewritten = find_coordinator.rewrite_response(6, frame, lambda node_id, host, port: None if node_id == 4 else (host, port))
    decoded = codec.decode_response(ApiKey.FIND_COORDINATOR, 6, rewritten)
    assert [(each["node_id"], each["error_code"]) for each in decoded["coordinators"]] == [(3, 0), (-1, 15), (-1, 15), (-1, 15)]


@pytest.mark.parametrize("version", range(7))
def test_unknown_coordinator_keeps_its_error(version):
    frame = made_up(version, NO_NODE | {"error_code": 30, "error_message": None})
    assert find_coordinator.rewrite_response(version, frame, nothing) == frame


KEYS = ["", "a", "b" * 126, "c" * 127, "d" * 300, "e" * 16_382, "f" * 16_383, "g" * 32_767]
REFUSED = NO_NODE | {"error_code": 30, "error_message": None}


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("translate", TRANSLATIONS)
def test_coordinators_like_earlier_ones_are_translated(version, translate):
    kinds = [KNOWN, UNKNOWN, KNOWN | {"node_id": 4, "error_message": "x"}, REFUSED, KNOWN | {"host": "k"}, KNOWN]
    answer = {"coordinators": [kind | {"key": key} for key in KEYS for kind in kinds]}
    rewritten = find_coordinator.rewrite_response(version, codec.encode_response(10, version, answer), translate)
    found = codec.decode_response(ApiKey.FIND_COORDINATOR, version, rewritten)["coordinators"]
    assert found == [translated(each, translate) for each in answer["coordinators"]]


def check(version, keys):
    values = {"key_type": 0, "coordinator_keys": [""] * keys}
    frame = codec.encode_request(ApiKey.FIND_COORDINATOR, version, values, 1, "")
    header = parse_request_header(frame, 4, len(frame), len(frame))
    find_coordinator.check_request(version, frame, header.body_offset, len(frame), len(frame))


@pytest.mark.parametrize("version", [4, 5, 6])
def test_request_has_at_most_as_many_keys_as_an_answer_may(version):
    check(version, find_coordinator.MAX_KEYS)
    with pytest.raises(InvalidFrame, match="20001 elements"):
        check(version, find_coordinator.MAX_KEYS + 1)
