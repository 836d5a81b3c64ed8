"""Peers that break the protocol: the session ends only with reasons that are labels of the metric."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.handler import EndConnection
from protocol.api_keys import APIS, ApiKey
from protocol.errors import ProtocolError
from protocol.framing import MAX_HEAD_BYTES
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import Transcript, gateway_address, limits
from tests.gateway.quotas.engines import bucket_of
from tests.protocol import codec
from tests.protocol.proxy_headers import IPV4, binary, line
from tests.protocol.samples import with_length

MAX_FRAME = 1_000_000
CLIENT_HELLO = bytes.fromhex("16030100f8010000f40303") + bytes(200)


REASONS = {
    None,
    *("negative_length", "frame_too_short", "frame_too_large", "tls_on_plaintext", "proxy_header", "http", "head_too_long"),
    *("unknown_api", "unsupported_version"),
    *("overrun", "bad_count", "bad_length", "bad_tags", "bad_varint"),
    *("broker_overrun", "broker_order", "broker_unasked"),
}
"""All reasons that bytes can cause; None means no error."""


def refused(what, *args, **kwargs):
    """Return the reason of a refusal, or the limit that it meets, or None. Any other error fails the test."""
    try:
        what(*args, **kwargs)
    except ProtocolError as error:
        return error.reason
    except EndConnection as error:
        return error.limit
    return None


def header(api_key, version, client_id=b"\x00\x03etl", more=b""):
    return with_length(api_key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + bytes(4) + client_id + more)


def cut_inside(frame, size):
    """Return the frame with a length of `size`, followed by another frame."""
    return size.to_bytes(4, "big") + frame[4 : 4 + size] + m.heartbeat(9)


FROM_A_CLIENT = {
    "negative length": (b"\xff\xff\xff\xff" + bytes(20), "negative_length"),
    "most negative length": (b"\x80\x00\x00\x00" + bytes(20), "negative_length"),
    "2 GB": (b"\x7f\xff\xff\xff" + bytes(20), "frame_too_large"),
    "one byte too many": ((MAX_FRAME + 1).to_bytes(4, "big") + bytes(20), "frame_too_large"),
    "TLS": (CLIENT_HELLO, "tls_on_plaintext"),
    "PROXY version 1": (line("TCP4 192.0.2.7 10.0.0.9 5555 9092"), "proxy_header"),
    "PROXY version 2": (binary(IPV4, IPV4, 5555, 9092), "proxy_header"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", "http"),
    "length 0": (bytes(20), "frame_too_short"),
    "shorter than a header": (b"\x00\x00\x00\x07" + bytes(20), "frame_too_short"),
    "no such API": (header(999, 0), "unknown_api"),
    "an API among brokers": (header(ApiKey.LEADER_AND_ISR, 0), "unknown_api"),
    "a negative API": (header(0xFFFF, 0), "unknown_api"),
    "a version too new": (header(ApiKey.METADATA, 99), "unsupported_version"),
    "a negative version": (header(ApiKey.METADATA, -1), "unsupported_version"),
    "a negative version of ApiVersions": (header(ApiKey.API_VERSIONS, -1), "unsupported_version"),
    "a client-id of length -2": (header(ApiKey.METADATA, 0, b"\xff\xfe"), "bad_count"),
    "a client-id beyond its frame": (header(ApiKey.METADATA, 0, b"\x00\x50etl") + bytes(200), "overrun"),
    "no room for a client-id": (cut_inside(m.metadata(1), 8), "overrun"),
    "header tags beyond the frame": (cut_inside(m.metadata(1), 13), "overrun"),
    "a header of tags": (header(ApiKey.METADATA, 9, more=b"\x7f" + bytes(300)), "bad_count"),
    "Produce without acks": (cut_inside(m.produce(1), 15), "overrun"),
    "Produce with half its acks": (cut_inside(m.produce(1), 16), "overrun"),
    "Produce v3 without acks": (cut_inside(m.produce(1, version=3), 15), "overrun"),
    "Fetch without topics": (cut_inside(m.fetch(1), 30), "overrun"),
    "Fetch v4 without topics": (cut_inside(m.fetch(1, version=4), 25), "overrun"),
    "a transactional id without end": (
        header(ApiKey.PRODUCE, 9, more=b"\x00\xff\xff\xff\xff\xff" + bytes(50)),
        "bad_varint",
    ),
}


@pytest.mark.parametrize(("sent", "reason"), FROM_A_CLIENT.values(), ids=FROM_A_CLIENT)
@pytest.mark.parametrize("by", [None, 1, 5, 13])
@pytest.mark.parametrize("before", [(), (m.heartbeat(1), m.produce(2))], ids=["at first", "later"])
def test_client_that_breaks_protocol_is_refused(sent, reason, by, before):
    t = Transcript(limits(1e9, 1e9), max_frame_bytes=MAX_FRAME)
    t.client_sends(*before)
    t.broker_got(*before)
    with pytest.raises(ProtocolError) as caught:
        t.client_sends(sent, by=by)
    assert caught.value.reason == reason


def test_longest_allowed_frame_passes():
    t = Transcript(max_frame_bytes=MAX_FRAME)
    t.client_sends(m.produce(1, size=MAX_FRAME))
    t.client_sends(m.produce(2, size=MAX_FRAME))
    with pytest.raises(ProtocolError) as caught:
        t.client_sends(m.produce(2, size=MAX_FRAME + 1))
    assert caught.value.reason == "frame_too_large"


@pytest.mark.parametrize("cut", [1, 4, 12, 20, 100])
def test_unfinished_request_is_reported(cut):
    t = Transcript()
    t.client_sends(m.heartbeat(1), m.produce(2, size=200)[:cut])
    assert t.core.requests.unfinished
    t.client_sends(m.produce(2, size=200)[cut:])
    assert not t.core.requests.unfinished


def test_head_without_end_is_not_held():
    transactional_id = b"\x00" + b"\xff\xff\x7f" + bytes(2 * MAX_HEAD_BYTES)
    t = Transcript()
    with pytest.raises(ProtocolError):
        t.client_sends(header(ApiKey.PRODUCE, 9, more=transactional_id), by=60_000)


FROM_A_BROKER = {
    "an answer that nobody asked for": (m.beat(1) + m.beat(2), "broker_unasked"),
    "an answer out of turn": (m.beat(7), "broker_order"),
    "a negative length": (b"\xff\xff\xff\xff" + bytes(20), "negative_length"),
    "a length that holds no correlation id": (b"\x00\x00\x00\x03" + bytes(20), "frame_too_short"),
}


@pytest.mark.parametrize(("sent", "reason"), FROM_A_BROKER.values(), ids=FROM_A_BROKER)
@pytest.mark.parametrize("by", [None, 1, 5])
@pytest.mark.parametrize("over", [False, True], ids=["unthrottled", "throttled"])
def test_broker_that_breaks_protocol_is_refused(sent, reason, by, over):
    t = Transcript(limits(produce=1 if over else None))
    t.client_sends(m.heartbeat(1), *([m.produce(2, acks=0)] if over else []))
    with pytest.raises(ProtocolError) as caught:
        t.broker_answers(sent, by=by)
    assert caught.value.reason == reason


CUT_METADATA = with_length(m.described(2, m.BROKERS)[4:40])
REWRITTEN = m.described(1, [(node_id, *gateway_address(node_id, host, port)) for node_id, host, port in m.BROKERS])

AFTER_A_GOOD_ANSWER = {
    "out of turn": (m.heartbeat(1), m.beat(1), m.heartbeat(2), m.beat(7), m.beat(1)),
    "unasked": (m.heartbeat(1), m.beat(1), b"", m.beat(2), m.beat(1)),
    "negative length": (m.heartbeat(1), m.beat(1), m.heartbeat(2), b"\xff\xff\xff\xff" + bytes(20), m.beat(1)),
    "damaged body": (m.heartbeat(1), m.beat(1), m.metadata(2), CUT_METADATA, m.beat(1)),
    "damaged body behind a rewritten one": (
        m.metadata(1), m.described(1, m.BROKERS), m.metadata(2), CUT_METADATA, REWRITTEN,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("request_frame", "good", "next_request", "bad", "delivered"), AFTER_A_GOOD_ANSWER.values(), ids=AFTER_A_GOOD_ANSWER
)
@pytest.mark.parametrize("by", [None, 1, 30])
@pytest.mark.parametrize("over", [False, True], ids=["unthrottled", "throttled"])
def test_good_answer_before_bad_one_is_delivered(request_frame, good, next_request, bad, delivered, by, over):
    t = Transcript(limits(produce=1 if over else None))
    t.client_sends(request_frame, next_request, *([m.produce(3, acks=0)] if over else []))
    with pytest.raises(ProtocolError):
        t.broker_answers(good + bad, by=by)
    assert len(t.client_inbox) == len(delivered)
    if not over:
        t.client_got(delivered)


def fetching(version):
    """A connection that has fetched once: its next Fetch of a session goes to the broker in spite of a debt."""
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(0, version=version))
    t.broker_answers(m.fetched(0, version=version))
    return t


def put_into_debt(t):
    bucket_of(t.engine, "fetch", "ANONYMOUS", "etl", t.now).charge(20_000, t.now)


@pytest.mark.parametrize(("version", "throttled"), [(4, False), (12, False), (17, False), (12, True), (17, True)])
@pytest.mark.parametrize("by", [None, 1])
def test_fetch_response_cut_in_its_head_is_refused(version, throttled, by):
    whole = m.fetched(1, version=version)
    for size in range(4, 13 if throttled else 8):
        t = fetching(version)
        if throttled:
            put_into_debt(t)
        t.client_sends(m.fetch(1, version=version, session=(77, 3)))
        if not throttled and version < 16:
            put_into_debt(t)
        with pytest.raises(ProtocolError) as caught:
            t.broker_answers(with_length(whole[4 : 4 + size]) + m.beat(9), by=by)
        assert caught.value.reason in ("overrun", "broker_overrun", "bad_count"), size


@pytest.mark.parametrize("frame", [m.metadata(1), m.api_versions(1)])
def test_nonsense_answer_to_handled_request_is_refused(frame):
    for seed in range(200):
        rng = random.Random(seed)
        t = Transcript()
        t.client_sends(frame)
        nonsense = with_length((1).to_bytes(4, "big") + rng.randbytes(rng.randrange(60)))
        reason = refused(t.broker_answers, nonsense, by=rng.choice([None, 1, 7]))
        assert reason in ("overrun", "bad_count", "bad_varint", "bad_length") or b"weir" not in t.client_inbox


requests = st.sampled_from(
    [m.produce(1), m.produce(1, acks=0), m.fetch(1), m.fetch(1, version=4), m.metadata(1), m.heartbeat(1)]
)


@given(st.lists(st.one_of(st.binary(max_size=60), requests), max_size=8), st.integers(1, 80), st.sampled_from([None, 100.0]))
def test_random_client_bytes_raise_only_protocol_errors(pieces, by, quota):
    t = Transcript(limits(quota, quota))
    assert refused(t.client_sends, *pieces, by=by) in REASONS


@given(st.data())
def test_changed_request_raises_only_protocol_errors(data):
    frame = bytearray(data.draw(requests))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(frame) - 1), st.integers(0, 255)), max_size=6)):
        frame[at] = value
    t = Transcript(limits(100.0, 100.0))
    by = data.draw(st.sampled_from([None, 1, 9]))
    assert refused(t.client_sends, bytes(frame), m.heartbeat(5), by=by) in REASONS


EXCHANGES = [
    (m.fetch(1, version=17), m.fetched(1, version=17, node_endpoints=m.node_endpoints(m.BROKERS))),
    (m.fetch(1, version=4), m.fetched(1, version=4)),
    (m.produce(1, version=11), m.produced(1, version=11, node_endpoints=m.node_endpoints(m.BROKERS))),
    (m.produce(1, version=7), m.produced(1, version=7)),
    (m.metadata(1), m.described(1, m.BROKERS)),
    (m.api_versions(1), m.versions_are(1, [(0, 0, 9)])),
]


@given(st.data())
def test_changed_response_has_a_known_reason(data):
    request, response = data.draw(st.sampled_from(EXCHANGES))
    frame = bytearray(response)
    positions = st.integers(0, min(len(frame) - 1, 150))
    for at, value in data.draw(st.lists(st.tuples(positions, st.integers(0, 255)), max_size=5)):
        frame[at] = value
    t = Transcript(limits(*data.draw(st.sampled_from([(None, None), (1.0, 1e9), (1e9, 1.0)]))))
    t.client_sends(request)
    by = data.draw(st.sampled_from([None, 1, 9]))
    # A length of many bytes meets the budget of collected answers.
    assert refused(t.broker_answers, bytes(frame), m.beat(5), by=by) in {*REASONS, "collected_bytes"}


@pytest.mark.parametrize("key", sorted(codec.KEYS & APIS.keys()))
def test_request_cut_at_each_byte_waits_then_passes(key):
    spec = APIS[key]
    if not spec.on_broker_listener:
        frame = header(key, 0)
        with pytest.raises(ProtocolError):
            Transcript().client_sends(frame)
        return
    frame = codec.encode_request(key, spec.max_version, {}, 5, "etl")
    for cut in range(1, len(frame)):
        t = Transcript()
        t.client_sends(frame[:cut])
        t.client_sends(frame[cut:])
        t.broker_got(frame)
