import pytest

from protocol.api_keys import APIS, ApiKey
from protocol.bodies import api_versions
from protocol.errors import Incomplete, InvalidFrame
from protocol.headers import parse_request_header
from protocol.throttle import throttle_offset
from tests.protocol import codec
from tests.protocol.golden import golden
from tests.protocol.samples import with_length

GOLDEN = golden(ApiKey.API_VERSIONS)
VERSIONS = range(5)


def ranges(version, frame):
    rows = codec.decode_response(ApiKey.API_VERSIONS, version, frame)["api_keys"]
    return {row["api_key"]: (row["min_version"], row["max_version"]) for row in rows}


def made_up(version, *rows, **values):
    keys = [{"api_key": key, "min_version": low, "max_version": high} for key, low, high in rows]
    return codec.encode_response(ApiKey.API_VERSIONS, version, {"api_keys": keys} | values)


@pytest.mark.parametrize("real", GOLDEN, ids=str)
def test_answer_of_kafka_4_3_passes_unchanged(real):
    assert api_versions.rewrite_response(real.version, real.frame) == real.frame


@pytest.mark.parametrize("real", GOLDEN, ids=str)
def test_librdkafka_still_sees_produce_v0(real):
    assert ranges(real.version, api_versions.rewrite_response(real.version, real.frame))[ApiKey.PRODUCE] == (0, 13)


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_are_the_intersection_of_both_sides(version):
    produce, fetch = APIS[ApiKey.PRODUCE].max_version, APIS[ApiKey.FETCH].max_version
    frame = made_up(
        version,
        (ApiKey.PRODUCE, 0, produce + 5),  # newer broker: capped
        (ApiKey.FETCH, 4, fetch - 2),  # older broker: its own
        (ApiKey.METADATA, 100, 101),  # nothing in common: dropped
        (ApiKey.VOTE, 0, 1),  # not for clients
        (ApiKey.UPDATE_METADATA, 0, 8),
        (999, 0, 3),  # unknown here
    )
    assert ranges(version, api_versions.rewrite_response(version, frame)) == {
        ApiKey.PRODUCE: (0, produce),
        ApiKey.FETCH: (4, fetch - 2),
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_lists_of_different_brokers_in_turn_stay_apart(version):
    older, newer = ((key, 0, 1) for key in (ApiKey.METADATA, ApiKey.FETCH))
    lists = [(older,), (older, newer), (newer,), (), (older,), (older, (999, 0, 3)), (older,), (older,)]
    for number, rows in enumerate(lists):
        behind = {"throttle_time_ms": number} if version >= 1 else {}
        known = [row for row in rows if row[0] != 999]
        assert api_versions.rewrite_response(version, made_up(version, *rows, **behind)) == made_up(version, *known, **behind)


@pytest.mark.parametrize("real", [real for real in GOLDEN if real.version >= 3], ids=str)
def test_unknown_features_and_tagged_fields_survive(real):
    tags = throttle_offset(ApiKey.API_VERSIONS, real.version, real.frame, 0, len(real.frame)) + 4
    more_tags = bytes([real.frame[tags] + 1]) + real.frame[tags + 1 :] + b"\x63\x02hi"
    unknown_api = (999).to_bytes(2, "big") + bytes(5)
    count = 10  # behind length, correlation id and error code
    grown = real.frame[4:count] + bytes([real.frame[count] + 1]) + unknown_api + real.frame[count + 1 : tags] + more_tags
    rewritten = api_versions.rewrite_response(real.version, with_length(grown))
    assert codec.decode_response(ApiKey.API_VERSIONS, real.version, rewritten)["finalized_features"] != []
    assert rewritten == with_length(real.frame[4:tags] + more_tags)


@pytest.mark.parametrize("version", [*VERSIONS, 9])
def test_unsupported_version_is_answered_in_v0(version):
    frame = made_up(0, (ApiKey.API_VERSIONS, 0, 9), (ApiKey.VOTE, 0, 1), error_code=35)
    assert ranges(0, api_versions.rewrite_response(version, frame)) == {ApiKey.API_VERSIONS: (0, 4)}


@pytest.mark.parametrize("real", GOLDEN, ids=str)
def test_frame_cut_within_the_array_is_invalid(real):
    after_array = 400
    for cut in range(len(real.frame)):
        with pytest.raises(InvalidFrame):
            api_versions.rewrite_response(real.version, real.frame[:cut])
        if cut < after_array:
            with pytest.raises(InvalidFrame):
                api_versions.rewrite_response(real.version, with_length(real.frame[4:cut]))


@pytest.mark.parametrize("version", range(5))
def test_newest_version_of_an_api_is_found(version):
    keys = [{"api_key": key, "min_version": 0, "max_version": newest} for key, newest in ((0, 11), (3, 12), (999, 5))]
    frame = codec.encode_response(ApiKey.API_VERSIONS, version, {"error_code": 0, "api_keys": keys})
    assert [api_versions.max_version(version, frame, key) for key in (3, 0, 999, 1)] == [12, 11, 5, -1]


def named(version, name, software_version="1.2.3"):
    values = {"client_software_name": name, "client_software_version": software_version} if version >= 3 else {}
    return codec.encode_request(ApiKey.API_VERSIONS, version, values, 7, "etl")


def software(frame, seen=None):
    header = parse_request_header(frame, 4, len(frame), len(frame))
    return api_versions.software(
        header.api_version, frame, header.body_offset, len(frame) if seen is None else seen, len(frame)
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_software_is_read_where_the_version_has_it(version):
    assert software(named(version, "apache-kafka-java")) == (("apache-kafka-java", "1.2.3") if version >= 3 else ("", ""))


@pytest.mark.parametrize("name", ["", "-java", "java client", "java\x1b[2J", "jäva", "a\n", "<b>"])
def test_invalid_name_of_software_is_left_out(name):
    assert software(named(3, name)) == ("", "1.2.3")


def test_long_name_of_software_is_cut():
    assert software(named(3, "a" * 1_000, "1" * 1_000)) == ("a" * 64, "1" * 64)


def test_software_waits_for_its_bytes():
    frame = named(3, "librdkafka")
    with pytest.raises(Incomplete):
        software(frame, len(frame) - 3)


def test_software_beyond_its_frame_is_refused():
    frame = with_length(named(3, "librdkafka")[4:-4])
    with pytest.raises(InvalidFrame):
        software(frame)
