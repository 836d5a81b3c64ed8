"""Requests without a quota pass unchanged and in order, in any chunks."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.proxy.decision import MAX_OPENED
from protocol.api_keys import APIS, ApiKey
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, Transcript, limits
from tests.gateway.quotas.engines import rows_of
from tests.protocol import codec
from tests.protocol.samples import response_frame

OPENED = {ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER, ApiKey.API_VERSIONS}
ENDPOINTS_SINCE = {ApiKey.PRODUCE: 10, ApiKey.FETCH: 16, ApiKey.SHARE_FETCH: 0, ApiKey.SHARE_ACKNOWLEDGE: 0}
UNTOUCHED = [
    (key, version)
    for key in sorted(codec.KEYS & APIS.keys())
    for version in range(int(codec.request_class(key).json["validVersions"].split("-")[0]), APIS[key].max_version + 1)
    if APIS[key].on_broker_listener and key not in OPENED and version < ENDPOINTS_SINCE.get(key, 99)
]


@pytest.mark.parametrize(("key", "version"), UNTOUCHED, ids=lambda value: str(value))
def test_api_without_addresses_passes_unchanged(key, version):
    request = codec.encode_request(key, version, {}, 5, "etl")
    rng = random.Random(version)
    response = response_frame(key, version, rng)
    response = response[:4] + (5).to_bytes(4, "big") + response[8:]
    t = Transcript()
    t.client_sends(request)
    t.broker_got(request)
    if key != ApiKey.PRODUCE:  # the default of acks is 0
        t.broker_answers(response)
        t.client_got(response)
    assert t.core.idle
    assert t.counters.requests[key] == 1


def test_pipelined_requests_are_answered_in_order():
    t = Transcript()
    t.client_sends(m.produce(1), m.metadata(2), m.fetch(3))
    t.broker_got(m.produce(1), m.metadata(2), m.fetch(3))
    t.client_sends(m.heartbeat(4))
    t.broker_got(m.heartbeat(4))
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1))
    t.broker_answers(m.described(2, []), m.fetched(3), m.beat(4))
    t.client_got(m.described(2, []), m.fetched(3), m.beat(4))
    assert t.core.idle


def test_many_requests_in_one_chunk_do_not_keep_the_event_loop():
    requests = [m.produce(number, client_id=f"client-{number}", acks=0) for number in range(1_000)]
    t = Transcript()
    t.client_sends(*requests)
    assert t.paused
    turns = 1
    while t.called_ready:
        t.run_ready()
        turns += 1
    t.broker_got(*requests)
    assert not t.paused
    assert 10 < turns < 30


@pytest.mark.parametrize("cut", [1, 12, 30, 60])
def test_client_is_read_on_behind_many_requests_and_a_part(cut):
    """The part may begin where the turn of the event loop ends."""
    requests = [m.produce(number) for number in range(200)]
    for count in range(50, 80):
        t = Transcript()
        t.client_sends(*requests[:count], requests[count][:cut])
        t.goes_on()
        t.client_sends(requests[count][cut:])
        t.broker_got(*requests[: count + 1])


def test_few_answers_wait_to_be_opened_at_once():
    requests = [m.metadata(number) for number in range(3 * MAX_OPENED)]
    t = Transcript()
    t.client_sends(*requests)
    t.goes_on()
    answered = 0
    while answered < len(requests):
        taken = len(t.core.in_flight)
        assert taken <= MAX_OPENED + 1
        t.broker_answers(*(m.described(answered + number, m.BROKERS) for number in range(taken)))
        t.goes_on()
        answered += taken
    t.broker_got(*requests)
    assert t.core.idle
    assert not t.paused


def test_produce_without_acks_has_no_response():
    t = Transcript()
    t.client_sends(m.produce(1, acks=0), m.produce(2), m.produce(3, acks=0), m.produce(4, acks=1))
    t.broker_got(m.produce(1, acks=0), m.produce(2), m.produce(3, acks=0), m.produce(4, acks=1))
    t.broker_answers(m.produced(2), m.produced(4))
    t.client_got(m.produced(2), m.produced(4))
    assert t.core.idle
    t.client_sends(m.produce(5, acks=0))
    assert t.core.idle


def test_changed_acks_among_like_requests_is_seen():
    t = Transcript()
    sent = [m.produce(number, acks=acks) for number, acks in enumerate((-1, -1, 0, 0, 1, 0))]
    t.client_sends(*sent)
    t.broker_got(*sent)
    assert [entry.correlation_id for entry in t.core.in_flight] == [0, 1, 4]


def test_use_is_measured_without_quota():
    t = Transcript()
    t.client_sends(m.produce(1, size=500), m.produce(2, size=700, acks=0), m.fetch(3))
    t.broker_answers(m.produced(1), m.fetched(3, size=1000))
    assert t.row("produce").amount_total == 1200
    assert t.row("fetch").amount_total == 1000
    assert (t.counters.requests[0], t.counters.requests[1]) == (2, 1)


@pytest.mark.parametrize(("latency", "slot"), [(0.0, 0), (1e-6, 1), (0.001, 11), (1.0, 21), (1e6, 28)])
def test_broker_latency_falls_in_its_bucket(latency, slot):
    t = Transcript()
    t.client_sends(m.heartbeat(1))
    t.passes(latency)
    t.broker_answers(m.beat(1))
    counts = t.counters.latency[ApiKey.HEARTBEAT]
    assert [index for index, count in enumerate(counts) if count] == [slot]
    assert t.counters.latency_seconds[ApiKey.HEARTBEAT] == pytest.approx(latency)
    assert slot == 28 or latency < 2**slot / 2**20


def test_unfinished_frame_is_forwarded():
    t = Transcript()
    request, response = m.produce(1, size=10_000), m.fetched(2, size=10_000)
    t.client_sends(request[:400])
    t.broker_got(request[:400])
    t.client_sends(request[400:], m.fetch(2))
    t.broker_got(request[400:], m.fetch(2))
    t.broker_answers(m.produced(1), response[:300])
    t.client_got(m.produced(1), response[:300])
    t.broker_answers(response[300:])
    t.client_got(response[300:])


# Any chunks.

EXCHANGES = [
    *((m.produce(0, version=v), m.produced(0, version=v)) for v in (3, 9, 11, 13)),
    *((m.produce(0, version=v, acks=0), None) for v in (3, 13)),
    (m.produce(0, version=9, size=5_000), m.produced(0, version=9, partitions=3)),
    (m.produce(0, version=11), m.produced(0, version=11, node_endpoints=m.node_endpoints(m.BROKERS))),
    *((m.fetch(0, version=v), m.fetched(0, version=v)) for v in (4, 7, 12, 17)),
    (m.fetch(0, version=17), m.fetched(0, version=17, size=3_000)),
    (m.metadata(0), m.described(0, m.BROKERS)),
    (m.metadata(0, version=5), m.described(0, m.BROKERS, version=5)),
    (m.api_versions(0), m.versions_are(0, [(0, 3, 99), (18, 0, 99), (999, 0, 1)])),
    (m.heartbeat(0), m.beat(0)),
    *(
        (codec.encode_request(key, version, {}, 0, "etl"), codec.encode_response(key, version, {"throttle_time_ms": 0}, 0))
        for key, version in (
            (ApiKey.SHARE_ACKNOWLEDGE, 1),
            (ApiKey.OFFSET_COMMIT, 8),
            (ApiKey.OFFSET_FETCH, 7),
            (ApiKey.JOIN_GROUP, 5),
            (ApiKey.DESCRIBE_CONFIGS, 4),
        )
    ),
]


def numbered(frame, correlation_id, at):
    return frame and frame[:at] + correlation_id.to_bytes(4, "big") + frame[at + 4 :]


def scripts(exchanges):
    """Return the bytes of the client and of the broker, with numbered frames."""
    requests = [numbered(request, number, 8) for number, (request, _) in enumerate(exchanges)]
    responses = [numbered(response, number, 4) for number, (_, response) in enumerate(exchanges) if response]
    return b"".join(requests), b"".join(responses)


def take_turn(t, broker, turn, sent):
    """The client sends some of its bytes, or the broker answers so many. Returns the bytes that the client has not sent."""
    is_client, size = turn
    if not is_client:
        broker.answer(size)
    elif sent:
        t.client_sends(sent[:size])
        sent = sent[size:]
    t.passes(0.01)
    return sent


cuts = st.one_of(st.integers(1, 30), st.integers(1, 5_000))


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(st.lists(st.sampled_from(EXCHANGES), min_size=1, max_size=12), cuts, cuts, st.sampled_from([None, 1e9]))
def test_any_chunking_forwards_same_bytes(exchanges, by, answers_by, quota):
    """A quota that is never reached makes Weir open Fetch requests and responses as well."""
    sent, answered = scripts(exchanges)
    whole, cut = (Transcript(limits(quota, quota)) for _ in range(2))
    whole.client_sends(sent)
    cut.client_sends(sent, by=by)
    whole.broker_answers(answered)
    cut.broker_answers(answered, by=answers_by)
    for t in (whole, cut):
        t.broker_got(sent)
        assert t.core.idle
    whole_got = bytes(whole.client_inbox)
    cut.client_got(whole_got)
    assert [row.amount_total for row in rows_of(cut.engine, START)] == [
        row.amount_total for row in rows_of(whole.engine, START)
    ]
    assert cut.counters.requests == whole.counters.requests


@pytest.mark.parametrize("exchange", [(request, answer) for request, answer in EXCHANGES if answer])
def test_cut_answer_to_a_muted_client_doubles_nothing(exchange):
    """The answer before it comes in the same read. The first 64 bytes have the fields that Weir reads or changes."""
    sent, answered = scripts([(m.heartbeat(0), m.beat(0)), exchange, (m.produce(0, size=300_000), m.produced(0))])
    first = len(m.beat(0))
    got = set()
    for cut in range(first, first + 65):
        t = Transcript(limits(produce=10_000.0))
        t.client_sends(sent)
        assert t.core.throttle.active
        t.broker_answers(answered[:cut])
        t.broker_answers(answered[cut:])
        got.add(bytes(t.client_inbox))
    assert [frames_of(inbox, 4) for inbox in got] == [[0, 1, 2]]


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(
    st.lists(st.sampled_from(EXCHANGES), min_size=1, max_size=10),
    st.lists(st.tuples(st.booleans(), st.integers(1, 400)), max_size=60),
    st.sampled_from([2_000.0, 300.0]),
)
def test_mixed_directions_and_throttles_lose_nothing(exchanges, turns, quota):
    """Both peers send in turns, the client over its quota. In the end, all is forwarded and answered in order."""
    sent, _ = scripts(exchanges)
    t = Transcript(limits(quota, quota))
    broker = Broker(t, exchanges)
    for turn in turns:
        sent = take_turn(t, broker, turn, sent)
    if sent:
        t.client_sends(sent)
    for _ in range(200):
        broker.answer(1 << 20)
        t.passes(60.0)
    assert not t.paused
    assert t.core.idle
    assert t.counters.muted == 0
    assert not t.core.throttle.active
    answers = [number for number, (_, response) in enumerate(exchanges) if response]
    assert frames_of(t.client_inbox, 4) == answers
    fetches_refused = len(exchanges) - len(frames_of(t.broker_inbox, 8))
    assert 0 <= fetches_refused <= sum(request[5] == ApiKey.FETCH for request, _ in exchanges)


def frames_of(data, at):
    """Return the correlation ids of the frames in `data`, which holds only whole frames."""
    found, pos = [], 0
    while pos < len(data):
        found.append(int.from_bytes(data[pos + at : pos + at + 4], "big"))
        pos += 4 + int.from_bytes(data[pos : pos + 4], "big")
    assert pos == len(data)
    return found


class Broker:
    """Answers the requests that have reached it, in order."""

    def __init__(self, transcript, exchanges):
        self.transcript = transcript
        self.responses = {number: numbered(response, number, 4) for number, (_, response) in enumerate(exchanges)}
        self.seen = 0
        self.pending = b""

    def answer(self, size):
        inbox = self.transcript.broker_inbox
        while len(inbox) - self.seen >= 12:
            length = int.from_bytes(inbox[self.seen : self.seen + 4], "big")
            if len(inbox) - self.seen < 4 + length:
                break
            self.pending += self.responses[int.from_bytes(inbox[self.seen + 8 : self.seen + 12], "big")] or b""
            self.seen += 4 + length
        chunk, self.pending = self.pending[:size], self.pending[size:]
        if chunk:
            self.transcript.broker_answers(chunk)
