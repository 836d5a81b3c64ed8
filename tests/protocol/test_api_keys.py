import json

import pytest

from protocol.api_keys import APIS, NEVER, WALK, ApiKey, request_header_version, response_header_version
from tests.protocol import codec

FACTS = json.loads((codec.DATA / "api_facts.json").read_text())
REMOVED_IN_KAFKA_4 = {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN}
FIXED_BYTES = {"int16": 2, "int32": 4, "int64": 8}


def never(fact):
    return NEVER if fact is None else fact


def test_each_api_of_kafka_4_3_has_a_row():
    assert {fact["key"] for fact in FACTS} | REMOVED_IN_KAFKA_4 == set(APIS) == set(ApiKey)


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact["name"])
def test_row_matches_kafkas_jar(fact):
    spec = APIS[fact["key"]]
    assert spec.name == fact["name"]
    assert spec.max_version == fact["max_version"]
    assert spec.flexible_since == never(fact["flexible_since"]) == never(fact["response_flexible_since"])
    assert spec.throttle_since == never(fact["throttle_since"])
    assert spec.on_broker_listener == fact["on_broker_listener"]


@pytest.mark.parametrize("fact", [f for f in FACTS if f["before_throttle"] is not None], ids=lambda fact: fact["name"])
def test_throttle_place_follows_from_fields_before_it(fact):
    before = fact["before_throttle"]
    fixed = all(kind in FIXED_BYTES for kind in before)
    assert APIS[fact["key"]].throttle_place == (sum(FIXED_BYTES[kind] for kind in before) if fixed else WALK)


def test_apis_removed_in_kafka_4_are_not_for_clients():
    assert not any(APIS[key].on_broker_listener for key in REMOVED_IN_KAFKA_4)


@pytest.mark.parametrize(
    ("key", "version", "request_header", "response_header"),
    [
        (ApiKey.PRODUCE, 8, 1, 0),
        (ApiKey.PRODUCE, 9, 2, 1),
        (ApiKey.SASL_HANDSHAKE, 1, 1, 0),
        (ApiKey.API_VERSIONS, 2, 1, 0),
        (ApiKey.API_VERSIONS, 4, 2, 0),
        (ApiKey.CONTROLLED_SHUTDOWN, 0, 0, 0),
        (ApiKey.CONTROLLED_SHUTDOWN, 1, 1, 0),
        (ApiKey.SHARE_FETCH, 0, 2, 1),
    ],
)
def test_header_versions_match_kafka(key, version, request_header, response_header):
    assert request_header_version(key, version) == request_header
    assert response_header_version(key, version) == response_header


def test_unknown_key_has_no_header_version():
    with pytest.raises(KeyError):
        request_header_version(999, 0)
