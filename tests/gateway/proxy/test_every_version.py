"""Generated answers of every API and version reach a muted client in two chunks. Only throttle times and addresses change."""

import random

import pytest

from protocol.api_keys import APIS, ApiKey
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import Transcript, limits
from tests.protocol import codec
from tests.protocol.samples import response_frame

VALUES = {ApiKey.API_VERSIONS: {"error_code": 0, "api_keys": []}}
REQUESTED = {ApiKey.PRODUCE: {"acks": 1}}
OVER_QUOTA, PRODUCED = m.produce(2, size=300_000), m.produced(2)
VERSIONS = [
    (key, version)
    for key in sorted(codec.KEYS)
    if APIS[key].on_broker_listener
    for version in range(int(codec.request_class(key).json["validVersions"].split("-")[0]), APIS[key].max_version + 1)
]


def other_port(node_id, host, port):
    """An address of the same length, so that an answer in two chunks needs no padding."""
    return host, port ^ 1 if host else port


def translated(value):
    """The decoded answer with each host beside a port translated, as clients get it. An unknown coordinator has no host."""
    if isinstance(value, list):
        return [translated(each) for each in value]
    if not isinstance(value, dict):
        return value
    changed = {name: translated(each) for name, each in value.items()}
    if changed.get("host") and "port" in changed:
        changed["port"] ^= 1
    return changed


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=lambda value: str(value))
def test_answer_changes_only_in_throttle_and_addresses(key, version):
    rng = random.Random(key << 8 | version)
    request = codec.encode_request(key, version, REQUESTED.get(key, {}), 1, "etl")
    frame = response_frame(key, version, rng, **VALUES.get(key, {}))
    frame = frame[:4] + (1).to_bytes(4, "big") + frame[8:]
    expected = codec.decode_response(key, version, frame)
    if key not in m.NOT_OF_BROKERS:
        expected = translated(expected)
    for cut in {*rng.sample(range(1, 15), 5), *rng.choices(range(1, len(frame)), k=5)}:
        t = Transcript(limits(produce=10_000.0), translate=other_port)
        t.client_sends(request, OVER_QUOTA)
        left = t.core.throttle.time_left_ms(t.now)
        assert left > 0
        t.broker_answers(frame[:cut])
        t.broker_answers(frame[cut:], PRODUCED)
        length = 4 + int.from_bytes(t.client_inbox[:4], "big")
        got = codec.decode_response(key, version, bytes(t.client_inbox[:length]))
        if "throttle_time_ms" in expected:
            assert got["throttle_time_ms"] == max(expected["throttle_time_ms"], left)
            got["throttle_time_ms"] = expected["throttle_time_ms"]
        assert got == expected, f"cut at {cut}"
        assert t.core.idle
