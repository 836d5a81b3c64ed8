"""No broker's own address reaches a client, in any response and in any chunking."""

import json
import uuid

import pytest

from gateway.proxy.collected import CollectBudget, HeldAnswers
from gateway.proxy.response_bodies import PLAIN, REWRITES, SEARCHED_SINCE, CollectedBody, DroppedBody, SearchedBody
from protocol.api_keys import APIS, ApiKey
from protocol.cursor import INT32
from protocol.encoding import encode_uvarint
from protocol.errors import InvalidFrame
from protocol.framing import MAX_HEAD_BYTES
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import Transcript, limits
from tests.protocol import codec

TOLD = [(0, "weir.example.com", 29_093), (1, "weir.example.com", 29_094)]
CHUNKS = [None, 1, 3, 17, 100]
FACTS = json.loads((codec.DATA / "api_facts.json").read_text())


def only_first(node_id, host, port):
    return ("weir.example.com", 29_093) if node_id == 0 else None


def test_no_answer_with_addresses_passes_as_it_comes():
    """A newer Kafka may add addresses to any answer."""
    with_addresses = {
        fact["key"]: fact["addresses_since"]
        for fact in FACTS
        if fact["on_broker_listener"] and fact["addresses_since"] is not None and fact["key"] not in m.NOT_OF_BROKERS
    }
    assert with_addresses == {ApiKey.METADATA: 0, ApiKey.FIND_COORDINATOR: 0, ApiKey.DESCRIBE_CLUSTER: 0, **SEARCHED_SINCE}
    for key, since in with_addresses.items():
        assert PLAIN.isdisjoint(key << 16 | version for version in range(since, APIS[key].max_version + 1))


@pytest.mark.parametrize("by", CHUNKS)
@pytest.mark.parametrize("version", [1, 5, 9, 12, 13])
def test_metadata_addresses_are_rewritten(version, by):
    t = Transcript()
    t.client_sends(m.metadata(1, version=version), m.heartbeat(2))
    t.broker_answers(m.described(1, m.BROKERS, version=version), m.beat(2), by=by)
    t.client_got(m.described(1, TOLD, version=version), m.beat(2))


@pytest.mark.parametrize("by", CHUNKS)
def test_metadata_omits_unknown_brokers(by):
    t = Transcript(translate=only_first)
    t.client_sends(m.metadata(1))
    t.broker_answers(m.described(1, m.BROKERS), by=by)
    t.client_got(m.described(1, TOLD[:1]))


@pytest.mark.parametrize("version", [3, 9, 13])
def test_metadata_reports_throttle_left_with_its_brokers(version):
    t = Transcript(limits(produce=1_000))
    t.client_sends(m.metadata(1, version=version), m.produce(2, size=10_500))
    response = m.described(1, m.BROKERS, version=version)
    t.broker_answers(response[:20])
    t.passes(0.2)
    t.client_got()
    t.broker_answers(response[20:-1])
    t.passes(0.1)
    t.broker_answers(response[-1:])
    t.client_got(m.described(1, TOLD, version=version, throttle_time_ms=300))


@pytest.mark.parametrize("version", range(14))
def test_topics_of_metadata_pass_as_they_come(version):
    t = Transcript()
    t.client_sends(m.metadata(1, version=version), m.heartbeat(2))
    response, expected = m.described(1, m.BROKERS, version=version), m.described(1, TOLD, version=version)
    front = response.index(m.BROKERS[-1][1].encode()) + 40  # some bytes behind the last broker
    t.broker_answers(response[:front])
    for at in range(front, len(response), 50):
        assert len(t.client_inbox) - len(expected) == at - len(response), "nothing is held"
        t.broker_answers(response[at : at + 50])
    t.broker_answers(m.beat(2))
    t.client_got(expected, m.beat(2))


def test_brokers_of_metadata_are_held_up_to_a_limit():
    """The brokers alone decide how many bytes those are."""
    hosts = [(number, f"{number}".rjust(250, "h"), 9092) for number in range(2 * MAX_HEAD_BYTES // 250)]
    t = Transcript()
    t.client_sends(m.metadata(1))
    response = m.described(1, hosts)
    t.broker_answers(response[:MAX_HEAD_BYTES])
    with pytest.raises(InvalidFrame) as caught:
        t.broker_answers(response[MAX_HEAD_BYTES:-2_000])
    assert caught.value.reason == "head_too_long"
    t.client_got()


@pytest.mark.parametrize("by", CHUNKS)
@pytest.mark.parametrize("version", [2, 3, 4, 6])
def test_find_coordinator_addresses_are_rewritten(version, by):
    def found(node_id, host, port):
        address = {"node_id": node_id, "host": host, "port": port, "error_code": 0}
        values = {"coordinators": [address | {"key": "g"}]} if version >= 4 else address
        return codec.encode_response(ApiKey.FIND_COORDINATOR, version, values, 1)

    t = Transcript()
    values = {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}
    t.client_sends(codec.encode_request(ApiKey.FIND_COORDINATOR, version, values, 1, "etl"))
    t.broker_answers(found(*m.BROKERS[1]), by=by)
    t.client_got(found(*TOLD[1]))


@pytest.mark.parametrize("by", CHUNKS)
def test_describe_cluster_addresses_are_rewritten(by):
    def described(brokers):
        listed = [{"broker_id": node_id, "host": host, "port": port} for node_id, host, port in brokers]
        return codec.encode_response(ApiKey.DESCRIBE_CLUSTER, 2, {"cluster_id": "c", "brokers": listed}, 1)

    t = Transcript()
    t.client_sends(codec.encode_request(ApiKey.DESCRIBE_CLUSTER, 2, {}, 1, "etl"))
    t.broker_answers(described(m.BROKERS), by=by)
    t.client_got(described(TOLD))


@pytest.mark.parametrize("by", CHUNKS)
@pytest.mark.parametrize("version", [10, 12, 13])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("quota", [None, 1_000])
def test_produce_response_leader_addresses_are_rewritten(version, by, partitions, quota):
    t = Transcript(limits(produce=quota))
    t.client_sends(m.produce(1, version=version, size=10_500), m.heartbeat(2))
    response = m.produced(1, version=version, partitions=partitions, node_endpoints=m.node_endpoints(m.BROKERS))
    t.broker_answers(response, by=by)
    expected = m.produced(
        1, version=version, partitions=partitions, node_endpoints=m.node_endpoints(TOLD), throttle_time_ms=500 if quota else 0
    )
    if by is None:
        t.client_got(expected)
        return
    got = bytes(t.client_inbox)
    assert len(got) == len(response)
    decoded = codec.decode_response(ApiKey.PRODUCE, version, got)
    decoded.pop("unknown_tags", None)  # the padding
    assert decoded == codec.decode_response(ApiKey.PRODUCE, version, expected)


@pytest.mark.parametrize("by", CHUNKS)
def test_share_acknowledge_leader_addresses_are_rewritten(by):
    partition = {"partition_index": 1, "error_code": 6, "current_leader": {"leader_id": 1, "leader_epoch": 3}}
    topics = [{"topic_id": uuid.UUID(int=7), "partitions": [partition] * 3}]

    def acknowledged(brokers):
        values = {"responses": topics, "node_endpoints": m.node_endpoints(brokers)}
        return codec.encode_response(ApiKey.SHARE_ACKNOWLEDGE, 1, values, 1)

    t = Transcript()
    values = {"group_id": "g", "member_id": "m", "share_session_epoch": 1, "topics": []}
    t.client_sends(codec.encode_request(ApiKey.SHARE_ACKNOWLEDGE, 1, values, 1, "etl"))
    response = acknowledged(m.BROKERS)
    t.broker_answers(response, by=by)
    if by is not None:
        assert len(t.client_inbox) == len(response), "its length went out before its addresses came"
    decoded = codec.decode_response(ApiKey.SHARE_ACKNOWLEDGE, 1, bytes(t.client_inbox))
    decoded.pop("unknown_tags", None)
    assert decoded == codec.decode_response(ApiKey.SHARE_ACKNOWLEDGE, 1, acknowledged(TOLD))


@pytest.mark.parametrize("quota", [None, 1_000])
@pytest.mark.parametrize("version", [0, 1, 7, 8, 9, 10, 13])
def test_long_produce_response_passes_as_it_comes(version, quota):
    t = Transcript(limits(produce=quota))
    t.client_sends(m.produce(1, version=version, size=10_500), m.heartbeat(2))
    response = m.produced(1, version=version, partitions=500)
    for start in range(0, len(response), 1_000):
        chunk = response[start : start + 1_000]
        t.passes(0.01)
        t.broker_answers(chunk)
        assert len(t.client_inbox) >= start + len(chunk) - 5, "only the throttle time and the tags may be held"
    left = 500 - 10 * len(range(0, len(response), 1_000)) if quota and version else 0
    t.client_got(m.produced(1, version=version, partitions=500, throttle_time_ms=left))


def test_long_answer_cut_in_its_head_passes_as_it_comes():
    topics = [{"name": "t", "partitions": [{"partition_index": number, "error_code": 3} for number in range(500)]}]

    def listed(throttle_time_ms):
        values = {"topics": topics, "throttle_time_ms": throttle_time_ms}
        return codec.encode_response(ApiKey.LIST_OFFSETS, 6, values, 1)

    t = Transcript(limits(produce=1_000))
    t.client_sends(codec.encode_request(ApiKey.LIST_OFFSETS, 6, {"topics": []}, 1, "etl"), m.produce(2, size=10_500))
    response = listed(0)
    t.broker_answers(response[:10])
    t.broker_answers(response[10:1_000])
    assert len(t.client_inbox) == 1_000
    t.broker_answers(response[1_000:])
    t.client_got(listed(500))


def test_produce_response_with_leaders_keeps_longer_throttle():
    t = Transcript(limits(produce=1_000))
    t.client_sends(m.produce(1, version=11, size=10_500))
    t.broker_answers(m.produced(1, version=11, node_endpoints=m.node_endpoints(m.BROKERS), throttle_time_ms=900))
    t.client_got(m.produced(1, version=11, node_endpoints=m.node_endpoints(TOLD), throttle_time_ms=900))


def test_new_leaders_among_like_produce_responses_are_seen():
    t = Transcript()
    plain = [m.produced(number, version=11) for number in range(4)]
    moved = m.produced(2, version=11, node_endpoints=m.node_endpoints(m.BROKERS))
    for number in range(4):
        t.client_sends(m.produce(number, version=11))
    t.broker_answers(plain[0], plain[1])
    t.broker_answers(moved, plain[3])
    t.client_got(*plain[:2], m.produced(2, version=11, node_endpoints=m.node_endpoints(TOLD)), plain[3])


@pytest.mark.parametrize("version", [16, 17, 18])
@pytest.mark.parametrize("by", CHUNKS)
@pytest.mark.parametrize("quota", [None, 1_000])
def test_fetch_response_leader_addresses_are_rewritten(version, by, quota):
    """Of a response in chunks, Weir sends the length before it knows the addresses. A tagged field then fills the length."""
    records = bytes(range(256)) * 50
    t = Transcript(limits(fetch=quota))
    t.client_sends(m.fetch(1, version=version), m.heartbeat(2))
    response = m.fetched(1, version=version, records=records, node_endpoints=m.node_endpoints(m.BROKERS))
    t.broker_answers(response, m.beat(2), by=by)
    got = bytes(t.client_inbox)
    length = 4 + int.from_bytes(got[:4], "big")
    if by is not None:
        assert length == len(response)
    decoded = codec.decode_response(ApiKey.FETCH, version, got[:length])
    (partition,) = decoded["responses"][0]["partitions"]
    assert partition["records"] == records
    assert [(each["node_id"], each["host"], each["port"]) for each in decoded["node_endpoints"]] == TOLD
    assert (decoded["throttle_time_ms"] > 0) == (quota is not None)
    assert b"internal" not in got
    left = max(0, decoded["throttle_time_ms"])
    assert got[length:] == m.beat(2, throttle_time_ms=left)


@pytest.mark.parametrize("by", [None, 1, 100])
def test_leader_addresses_without_room_are_dropped(by):
    t = Transcript(translate=lambda node_id, host, port: ("a-much-longer-name-than-before." * 3, port))
    t.client_sends(m.fetch(1, version=17))
    t.broker_answers(m.fetched(1, version=17, node_endpoints=m.node_endpoints(m.BROKERS)), by=by)
    decoded = codec.decode_response(ApiKey.FETCH, 17, bytes(t.client_inbox))
    assert len(decoded["node_endpoints"]) == (2 if by is None else 0)
    assert b"internal" not in t.client_inbox


def _ports(fields, path=""):
    """Yield the path of each field with a port, and the first version that has it."""
    for field in fields:
        name = f"{path}{field['name']}"
        if field["name"] == "Port":
            yield name, int(field["versions"].split("-")[0].rstrip("+"))
        yield from _ports(field.get("fields", ()), f"{name}.")


def test_all_responses_with_addresses_are_rewritten_or_known():
    known = {
        ApiKey.DESCRIBE_QUORUM: "controllers, to which no client connects: see docs/reference/compatibility.md",
        ApiKey.STREAMS_GROUP_HEARTBEAT: "other clients",
        ApiKey.STREAMS_GROUP_DESCRIBE: "other clients",
    }
    rewritten = {key: since for key, (since, _) in REWRITES.items()} | SEARCHED_SINCE
    found = {}
    for key in codec.KEYS & {spec.key for spec in APIS.values() if spec.on_broker_listener}:
        spec = codec.response_class(key)._json
        for _, since in _ports([*spec["fields"], *spec.get("commonStructs", ())]):
            found[key] = min(since, found.get(key, since))
    assert found.keys() - known.keys() == rewritten.keys() - {ApiKey.API_VERSIONS}
    assert known.keys() <= found.keys()
    assert all(rewritten[key] <= since for key, since in found.items() if key not in known)


# The versions that a client gets.


@pytest.mark.parametrize("by", CHUNKS)
@pytest.mark.parametrize("version", [0, 3, 4])
def test_api_versions_is_intersection_of_broker_and_gateway(version, by):
    t = Transcript()
    t.client_sends(m.api_versions(1, version=version))
    brokers = [(0, 3, 99), (1, 4, 12), (18, 0, 99), (4, 0, 7), (999, 0, 5)]
    t.broker_answers(m.versions_are(1, brokers, version=version), by=by)
    newest = APIS[ApiKey.PRODUCE].max_version, APIS[ApiKey.API_VERSIONS].max_version
    t.client_got(m.versions_are(1, [(0, 3, newest[0]), (1, 4, 12), (18, 0, newest[1])], version=version))


@pytest.mark.parametrize("by", [None, 1, 10])
def test_newer_api_versions_request_becomes_unknown_version(by):
    """Weir asks for an unknown version, so it knows the answer's layout: the error and the versions in v0 (KIP-511)."""
    t = Transcript()
    known = m.api_versions(1, version=4)
    newer = known[:6] + b"\x00\x05" + known[8:]
    t.client_sends(newer, m.heartbeat(2), by=by)
    t.broker_got(known[:6] + b"\x7f\xff" + known[8:], m.heartbeat(2))
    t.broker_answers(m.versions_are(1, [(18, 0, 5), (0, 0, 20)], version=0, error_code=35), m.beat(2))
    newest = APIS[ApiKey.API_VERSIONS].max_version, APIS[ApiKey.PRODUCE].max_version
    t.client_got(m.versions_are(1, [(18, 0, newest[0]), (0, 0, newest[1])], version=0, error_code=35), m.beat(2))


# The bodies without a session.


def test_dropped_body_emits_nothing():
    body = DroppedBody()
    assert (body.feed(b"abc", 0, 3), body.finish(1.0)) == (b"", b"")


def test_collected_body_is_changed_at_its_end():
    body = CollectedBody(lambda frame, now: frame.upper() + str(now).encode(), HeldAnswers(CollectBudget().answers))
    assert [body.feed(b"xxabcxx", 2, 4), body.feed(b"cd", 0, 2)] == [b"", b""]
    assert body.finish(2.5) == b"ABCD2.5"


def test_searched_body_is_sent_up_to_tagged_fields():
    frame = m.fetched(1, version=17, records=bytes(100))
    body = SearchedBody(ApiKey.FETCH, 17, only_first, lambda now: 0)
    out = [bytes(body.feed(frame, at, min(at + 30, len(frame)))) for at in range(0, len(frame), 30)]
    assert b"".join(out) == frame[:-1]
    assert body.finish(0.0) == frame[-1:] == b"\0"


@pytest.mark.parametrize("key", [ApiKey.FETCH, ApiKey.SHARE_FETCH], ids=lambda key: key.name)
def test_endless_end_of_an_answer_is_not_held(key):
    """The broker is trusted with the size of an answer, but Weir holds the end of it."""
    version, head = (
        (17, m.fetched(1, version=17))
        if key == ApiKey.FETCH
        else (1, codec.encode_response(key, 1, {"error_code": 0, "responses": []}, 1))
    )
    body = SearchedBody(key, version, only_first, lambda now: 0)
    frame = INT32.pack(2**31 - 1) + head[4:-1] + b"\1\5" + encode_uvarint(2**30)
    body.feed(frame, 0, len(frame))
    more = bytes(MAX_HEAD_BYTES)
    with pytest.raises(InvalidFrame, match="the addresses at the end of an answer"):
        body.feed(more, 0, len(more))
