"""`request_rate` on one connection: each request is answered, and the client is muted once it is over its rate (KIP-219)."""

import pytest

from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, Transcript
from tests.gateway.quotas.engines import bucket_of
from tests.protocol import codec


def rates(request_rate=1.0, *, enforce=True, **rates):
    """Requests per second of one client-id; the burst is ten seconds' worth."""
    quota = EntityQuota(ClientQuotaEntity(None, "etl"), {"request_rate": request_rate} | rates)
    return QuotaSettings((quota,), enforce=enforce)


def described(number, throttle_time_ms=0):
    return m.described(number, [], throttle_time_ms=throttle_time_ms)


def committed(number, throttle_time_ms=0):
    return codec.encode_response(ApiKey.OFFSET_COMMIT, 8, {"throttle_time_ms": throttle_time_ms}, number)


def commit(number):
    return codec.encode_request(ApiKey.OFFSET_COMMIT, 8, {"group_id": "g"}, number, "etl")


def fetched(number, throttle_time_ms=0):
    return m.fetched(number, throttle_time_ms=throttle_time_ms)


def produced(number, throttle_time_ms=0):
    return m.produced(number, throttle_time_ms=throttle_time_ms)


def list_offsets(number):
    return codec.encode_request(ApiKey.LIST_OFFSETS, 7, {"replica_id": -1}, number, "etl")


def offsets(number, throttle_time_ms=0):
    return codec.encode_response(ApiKey.LIST_OFFSETS, 7, {"throttle_time_ms": throttle_time_ms}, number)


REQUESTS = {
    "Metadata": (m.metadata, described),
    "ListOffsets": (list_offsets, offsets),
    "OffsetCommit": (commit, committed),
    "Fetch": (m.fetch, fetched),
    "Produce": (m.produce, produced),
}


@pytest.mark.parametrize(("ask", "answer"), REQUESTS.values(), ids=REQUESTS)
def test_request_over_the_rate_is_answered_then_muted(ask, answer):
    t = Transcript(rates())
    for number in range(10):
        t.client_sends(ask(number))
        t.broker_answers(answer(number))
    t.broker_got(*map(ask, range(10)))
    t.client_got(*map(answer, range(10)))
    t.client_sends(ask(10), ask(11))
    t.broker_got(ask(10))
    t.broker_answers(answer(10))
    t.client_got(answer(10, 1_000))
    t.passes(0.999)
    t.broker_got()
    t.passes(0.001)
    t.broker_got(ask(11))
    assert t.row("request_rate").amount_total == 12


def test_all_apis_share_one_bucket():
    t = Transcript(rates())
    t.client_sends(*(ask(number) for number, (ask, _) in enumerate([*REQUESTS.values()] * 2)))
    assert not t.paused
    t.client_sends(m.heartbeat(10))
    assert t.paused


def test_greeting_costs_nothing():
    t = Transcript(rates())
    t.client_sends(*map(m.api_versions, range(20)))
    t.broker_got(*map(m.api_versions, range(20)))
    assert "request_rate" not in {bucket.kind.name for bucket in t.engine.buckets()}


@pytest.mark.parametrize("acks", [-1, 0])
@pytest.mark.parametrize("by", [None, 50, 101])
@pytest.mark.parametrize(
    ("byte_rate", "kind", "seconds"),
    [(1_000.0, "request_rate", 2.0), (70.0, "request_rate", 2.0), (50.0, "producer_byte_rate", 6.0)],
)
def test_producer_waits_for_the_tighter_quota(byte_rate, kind, seconds, by, acks):
    """The sixth request goes over both quotas: one request at 0.5/s, and 800 bytes after a burst of ten seconds."""
    t = Transcript(rates(0.5, producer_byte_rate=byte_rate))
    t.client_sends(*(m.produce(number, size=100, acks=acks) for number in range(5)), by=by)
    assert t.core.client.hot_buckets
    t.client_sends(m.produce(5, size=300, acks=acks), by=by)
    assert (t.throttled_by, t.core.throttle.until - t.now) == (kind, pytest.approx(seconds))
    assert (t.row("request_rate").amount_total, t.row("produce").amount_total) == (6, 800)


def test_long_poll_over_the_rate_is_not_read_until_its_answer():
    t = Transcript(rates())
    t.client_sends(*map(m.heartbeat, range(10)))
    t.broker_answers(*map(m.beat, range(10)))
    t.client_sends(m.fetch(10), m.heartbeat(11))
    t.passes(5.0)
    t.broker_got(*map(m.heartbeat, range(10)), m.fetch(10))
    t.broker_answers(m.fetched(10))
    t.broker_got(m.heartbeat(11))


def test_unenforced_rate_delays_nobody():
    t = Transcript(rates(enforce=False))
    t.client_sends(*map(m.heartbeat, range(20)))
    t.broker_got(*map(m.heartbeat, range(20)))
    assert t.row("request_rate").throttled_total == 10


def test_raised_rate_ends_the_mute():
    t = Transcript(rates())
    t.client_sends(*map(m.heartbeat, range(13)))
    t.broker_answers(*map(m.beat, range(11)))
    t.configure(QuotaSettings())
    t.passes(0.001)
    t.broker_got(*map(m.heartbeat, range(13)))


def test_new_rate_charges_open_connections():
    t = Transcript()
    t.client_sends(*map(m.heartbeat, range(20)))
    assert "request_rate" not in {bucket.kind.name for bucket in t.engine.buckets()}
    t.configure(rates())
    t.client_sends(*map(m.heartbeat, range(20, 30)))
    assert not t.paused
    t.client_sends(m.heartbeat(30))
    assert t.paused
    assert t.row("request_rate").amount_total == 11


def test_removed_rate_ends_the_wait_for_its_bucket():
    engine = QuotaEngine(rates(), START)
    bucket = bucket_of(engine, "request_rate", "ANONYMOUS", "etl", START)
    bucket.charge(40, START)
    t = Transcript(engine=engine)
    t.client_sends(m.metadata(0))
    assert (t.paused, bucket.first_requests.waiting) == (True, 1)
    t.configure(QuotaSettings())
    t.passes(0.001)
    t.broker_got(m.metadata(0))
    assert (t.paused, bucket.first_requests.waiting) == (False, 0)


def test_client_without_a_rate_has_no_bucket():
    t = Transcript(rates())
    t.client_sends(*(m.metadata(number, client_id="other") for number in range(20)))
    assert "request_rate" not in {bucket.kind.name for bucket in t.engine.buckets()}


def test_request_in_two_chunks_leaves_the_queue_at_its_turn():
    engine = QuotaEngine(rates(), START)
    bucket = bucket_of(engine, "request_rate", "ANONYMOUS", "etl", START)
    delay, _ = bucket.charge(40, START)
    t = Transcript(engine=engine)
    request = m.metadata(0)
    t.client_sends(request[:-1])
    assert bucket.first_requests.waiting == 1
    t.passes(delay)
    t.broker_got(request[:-1])
    assert (bucket.first_requests.waiting, t.core.client.place.queued) == (0, False)


def test_higher_request_rate_leaves_the_mute_for_bytes():
    t = Transcript(rates(0.5, producer_byte_rate=80.0))
    t.client_sends(*(m.produce(number, size=100) for number in range(5)))
    t.client_sends(m.produce(5, size=380))
    assert (t.throttled_by, t.core.throttle.until - t.now) == ("request_rate", pytest.approx(2.0))
    t.configure(rates(1_000.0, producer_byte_rate=80.0))
    assert (t.throttled_by, t.core.throttle.until - t.now) == ("producer_byte_rate", pytest.approx(1.0))
