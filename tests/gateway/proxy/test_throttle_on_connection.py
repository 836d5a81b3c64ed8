"""A client over its quota, as a transcript: KIP-219 with many requests in flight."""

from itertools import pairwise

import pytest

from gateway.proxy.channel_throttle import mute_left
from gateway.proxy.in_flight import MAX_IN_FLIGHT
from gateway.proxy.wire import PassingWriter
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.line import Consumer
from gateway.quotas.settings import QuotaSettings
from protocol.throttle import MAX_THROTTLE_MS
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, Transcript, limits
from tests.gateway.quotas.engines import bucket_of

# 1000 bytes per second, a burst of 10 000: a request of 10 500 bytes is half a second too much.
OVER = 10_500


def over_quota(**rest):
    return Transcript(limits(produce=1_000, **rest))


@pytest.mark.parametrize("version", [3, 7, 9, 11, 13])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("by", [None, 1, 40])
def test_throttle_time_is_found_in_any_response_shape(version, partitions, by):
    t = over_quota()
    t.client_sends(m.produce(1, version=version), m.produce(2, version=version, size=OVER))
    t.broker_answers(*(m.produced(number, version=version, partitions=partitions) for number in (1, 2)), by=by)
    held = round((len(m.produce(1, version=version)) - 4 + OVER) - 10_000)
    t.client_got(*(m.produced(number, version=version, partitions=partitions, throttle_time_ms=held) for number in (1, 2)))


@pytest.mark.parametrize("version", [3, 7, 9, 11, 13])
def test_produce_over_quota_is_forwarded_and_mutes_client(version):
    t = over_quota()
    t.client_sends(m.produce(1, version=version, size=OVER))
    t.broker_got(m.produce(1, version=version, size=OVER))
    assert t.paused
    assert t.counters.muted == 1
    t.passes(0.1)
    t.broker_answers(m.produced(1, version=version))
    t.client_got(m.produced(1, version=version, throttle_time_ms=400))  # the rest of the throttle time
    t.passes(0.399)
    assert t.paused
    t.passes(0.001)
    assert not t.paused
    assert t.counters.muted == 0
    t.client_sends(m.produce(2, version=version, size=200))
    t.broker_got(m.produce(2, version=version, size=200))
    row = t.row()
    assert (row.amount_total, row.throttled_total, row.throttle_seconds_total) == (10_700, 2, pytest.approx(0.7))


def test_response_without_throttle_field_stays_unchanged():
    t = over_quota()
    t.client_sends(m.produce(1, version=0, size=OVER))
    t.broker_answers(m.produced(1, version=0))
    t.client_got(m.produced(1, version=0))
    assert t.paused


@pytest.mark.parametrize(("brokers", "longer"), [(0, 500), (499, 500), (500, 500), (2_000, 2_000)])
def test_client_gets_longer_of_both_throttle_times(brokers, longer):
    t = over_quota()
    t.client_sends(m.produce(1, size=OVER))
    t.broker_answers(m.produced(1, throttle_time_ms=brokers))
    t.client_got(m.produced(1, throttle_time_ms=longer))


def test_client_stays_muted_until_response_is_sent():
    t = over_quota()
    t.client_sends(m.produce(1, size=OVER))
    t.passes(2)
    assert t.paused
    response = m.produced(1)
    t.broker_answers(response[:20])
    assert t.paused
    t.broker_answers(response[20:])
    t.client_got(m.produced(1))  # no throttle time is left
    assert not t.paused


def test_without_acks_only_time_unmutes():
    t = over_quota()
    t.client_sends(m.produce(1, acks=0, size=OVER), m.heartbeat(2))
    t.broker_got(m.produce(1, acks=0, size=OVER))
    assert t.paused
    t.passes(0.5)
    t.broker_got(m.heartbeat(2))
    assert not t.paused
    assert t.row().early_total == 0  # no response had a throttle time yet


def test_requests_read_with_muting_one_wait():
    t = over_quota()
    t.client_sends(m.produce(1, size=OVER), m.metadata(2), m.produce(3, size=100), m.metadata(4)[:9])
    t.broker_got(m.produce(1, size=OVER))
    t.client_sends_into_the_loop(m.metadata(4)[9:], m.heartbeat(5)[:3])
    t.broker_answers(m.produced(1))
    t.passes(0.499)
    t.broker_got()
    t.passes(0.001)
    t.broker_got(m.metadata(2), m.produce(3, size=100))  # produce 3 exceeds the quota again
    assert t.paused
    t.broker_answers(m.described(2, []), m.produced(3))
    t.client_got(
        m.produced(1, throttle_time_ms=500), m.described(2, [], throttle_time_ms=100), m.produced(3, throttle_time_ms=100)
    )
    t.passes(0.1)
    t.broker_got(m.metadata(4))
    assert not t.paused
    t.client_sends(m.heartbeat(5)[3:])
    t.broker_got(m.heartbeat(5))


@pytest.mark.parametrize("by", [1_000, 10_400])
def test_unfinished_request_is_read_to_its_end(by):
    t = over_quota()
    request = m.produce(1, size=OVER)
    t.client_sends(request[:by])
    t.broker_got(request[:by])
    assert not t.paused
    t.client_sends(request[by:-1])
    assert not t.paused
    assert t.counters.muted == 0  # arriving bytes exceed the quota, not the length in the header
    t.client_sends(request[-1:], m.metadata(2))
    t.broker_got(request[by:])
    assert t.paused
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=500))
    t.passes(0.5)
    t.broker_got(m.metadata(2))


def test_unfinished_request_outlasts_throttle():
    t = over_quota()
    request = m.produce(1, acks=0, size=OVER)
    t.client_sends(request[:5_000])
    t.passes(0.5)
    t.client_sends(request[5_000:], m.metadata(2))
    t.broker_got(request, m.metadata(2))
    assert not t.paused


def test_requests_in_flight_when_one_mutes_are_answered():
    t = over_quota()
    t.client_sends(m.produce(1, size=5_000), m.metadata(2), m.produce(3, size=5_500), m.produce(4, size=100))
    t.broker_got(m.produce(1, size=5_000), m.metadata(2), m.produce(3, size=5_500))
    t.passes(0.1)
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=400))  # the response before the one that exceeds the quota
    t.passes(1)
    assert t.paused  # the mute waits for this response
    t.broker_answers(m.described(2, []))
    assert t.paused
    t.broker_answers(m.produced(3))
    t.client_got(m.described(2, []), m.produced(3))
    assert not t.paused
    t.broker_got(m.produce(4, size=100))


def test_like_responses_stay_distinct():
    """A client may give all requests the same correlation id. The mute waits for the response of the last."""
    t = over_quota()
    t.client_sends(m.produce(1, size=5_250), m.produce(1, size=5_250))
    t.passes(0.5)
    t.broker_answers(m.produced(1))
    assert t.paused
    t.broker_answers(m.produced(1))
    assert not t.paused


def test_longest_delay_saturates():
    t = Transcript(limits(produce=1, algorithm="window"))
    t.client_sends(m.produce(1, size=3_000_000))
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=MAX_THROTTLE_MS))  # in Kafka it would be negative, so no throttle at all
    t.passes(1e6)
    assert t.paused


def test_early_timer_is_set_again():
    t = over_quota()
    t.client_sends(m.produce(1, acks=0, size=OVER))
    t.now = START + 0.4
    t.core.wake(t.now)
    assert t.paused
    assert t.alarm == pytest.approx(START + 0.5)
    t.passes(0.1)
    assert not t.paused
    t.core.wake(t.now)  # a left-over timer does nothing
    assert not t.paused


def test_clients_that_ignore_throttle_are_counted():
    t = over_quota()
    t.client_sends(m.produce(1, size=OVER))
    t.client_sends(m.heartbeat(2))  # sent before the client knew of its throttle
    t.broker_answers(m.produced(1))
    t.passes(0.5)
    t.broker_got(m.produce(1, size=OVER), m.heartbeat(2))
    assert t.row().early_total == 0
    t.client_sends(m.produce(3, size=500))
    t.broker_answers(m.beat(2), m.produced(3))
    t.passes(0.1)
    t.client_sends(m.produce(4))
    t.passes(0.4)
    assert t.row().early_total == 1
    assert t.row().early_seconds_total == t.row().early_seconds_max == pytest.approx(0.4)


def test_closed_connection_is_not_counted_as_muted():
    t = over_quota()
    t.client_sends(m.produce(1, size=OVER))
    t.core.close(t.now)
    t.core.close(t.now)
    assert t.counters.muted == 0
    assert t.row().connections == 0


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_unenforced_throttle_is_only_counted(algorithm):
    t = over_quota(enforce=False, algorithm=algorithm)
    t.client_sends(m.produce(1, size=OVER), m.produce(2, size=1_000), m.fetch(3))
    t.broker_got(m.produce(1, size=OVER), m.produce(2, size=1_000), m.fetch(3))
    t.broker_answers(m.produced(1), m.produced(2), m.fetched(3))
    t.client_got(m.produced(1), m.produced(2), m.fetched(3))
    assert not t.paused
    assert (t.row().throttled_total, t.row().throttle_seconds_total) == (2, pytest.approx(1.5))


def test_connections_of_one_client_share_its_quota():
    engine = QuotaEngine(limits(produce=1_000), START)
    one, other = Transcript(engine=engine), Transcript(engine=engine)
    one.client_sends(m.produce(1, size=10_000))
    other.client_sends(m.produce(1, size=500))
    assert (one.paused, other.paused) == (False, True)
    assert one.row().connections == 2


# The client's name and the configuration.


def test_another_client_id_is_another_bucket():
    t = over_quota()
    t.client_sends(m.produce(1, size=9_000), m.produce(2, size=9_000, client_id="other"), m.produce(3, size=900))
    assert not t.paused
    assert (t.row().amount_total, t.row(client_id="other").amount_total) == (9_900, 9_000)
    assert (t.row().connections, t.row(client_id="other").connections) == (1, 0)
    t.client_sends(m.produce(4, size=600, client_id="other"), m.produce(5, size=600))
    assert t.paused


def test_client_id_used_again_keeps_its_bucket():
    t = Transcript(limits(produce=1_000, fetch=1_000))
    for request in (m.produce(1, size=100), m.fetch(2, client_id="other"), m.produce(3, size=100)):
        t.client_sends(request)
    assert t.row().amount_total == 200
    assert t.row().connections == 1
    assert t.row("fetch", "other").connections == 0


def test_null_client_id_is_the_empty_name():
    t = Transcript(limits(produce=1_000, client_id=""))
    t.client_sends(m.produce(1, size=OVER, client_id=""))
    assert t.paused
    null = Transcript(limits(produce=1_000, client_id=""))
    frame = m.produce(1, size=OVER, client_id="")
    null.client_sends(frame[:12] + b"\xff\xff" + frame[14:])
    assert null.paused


def test_new_limit_applies_to_next_request():
    t = Transcript(limits())
    t.client_sends(m.produce(1, size=50_000), m.produce(2, size=50_000))
    assert not t.paused
    t.configure(limits(produce=1_000))
    t.client_sends(m.produce(3, size=500))
    t.broker_got(m.produce(1, size=50_000), m.produce(2, size=50_000), m.produce(3, size=500))
    assert t.paused
    t.broker_answers(m.produced(1), m.produced(2), m.produced(3))
    t.client_got(*(m.produced(number, throttle_time_ms=500) for number in (1, 2, 3)))
    assert (t.row().connections, t.row().amount_total) == (1, 100_500)


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        (limits(), 0.0),
        (limits(produce=2_000), 0.25),
        (limits(produce=1_000), 0.5),
        (limits(produce=100), 0.5),  # the announced throttle time is half a second
        (limits(produce=1_000, enforce=False), 0.0),
    ],
)
def test_changed_limit_shortens_mute_but_never_extends_it(settings, left):
    t = over_quota()
    t.client_sends(m.produce(1, size=OVER))
    t.broker_answers(m.produced(1))
    t.configure(settings)
    if left:
        t.passes(left - 0.001)
        assert t.paused
    t.passes(0.001)
    assert not t.paused


@pytest.mark.parametrize(
    ("limit", "left"),
    [(1_000, 70.0), (2_000, 35.0), (500, 70.0), (None, 0.0)],
    ids=["the same", "twice as much", "half of it", "none"],
)
def test_window_without_its_burst_unmutes_nobody_early(limit, left):
    t = Transcript(limits(produce=1_000, algorithm="window"))
    t.client_sends(m.produce(1, size=100_000))  # 90 s beyond the 10 s of the window
    t.broker_answers(m.produced(1))
    t.passes(20.0)
    for _ in range(3):
        t.configure(limits(produce=limit, algorithm="window"))
    if left:
        t.passes(left - 0.01)
        assert t.paused
    t.passes(0.02)
    assert not t.paused


def bucket_of_consumers(**rest):
    return bucket_of(QuotaEngine(limits(fetch=1_000, **rest), START), "fetch", "", "etl", START)


@pytest.mark.parametrize("limit", [1_000.0, 500.0, None])
def test_mute_lasts_no_longer_than_the_debt(limit):
    bucket = bucket_of_consumers()
    bucket.charge(12_000, START)
    assert mute_left(bucket, 5.0, limit, START) == 2.0
    assert mute_left(bucket, 0.5, limit, START) == 0.5


def test_mute_in_line_keeps_its_time_under_the_same_limit():
    bucket = bucket_of_consumers()
    bucket.charge(10_100, START)
    bucket.admit_fetch(Consumer(), START)
    assert mute_left(bucket, 3.0, 1_000.0, START) == 3.0
    assert mute_left(bucket, 3.0, 500.0, START) == pytest.approx(0.1)


@pytest.mark.parametrize(("limit", "left"), [(500.0, 2.0), (1_000.0, 4.0), (2_000.0, 4.0), (None, 4.0)])
def test_mute_for_a_window_is_scaled_as_the_limit(limit, left):
    assert mute_left(bucket_of_consumers(algorithm="window"), 4.0, limit, START) == left


def test_mute_ends_without_enforcement():
    bucket = bucket_of_consumers(enforce=False)
    bucket.meter.charge(12_000, START)
    assert mute_left(bucket, 5.0, 1_000.0, START) == 0.0


def test_mute_ends_without_a_limit():
    bucket = bucket_of(QuotaEngine(QuotaSettings(), START), "fetch", "", "etl", START)
    assert mute_left(bucket, 5.0, 1_000.0, START) == 0.0


def test_limit_raised_twice_shortens_mute_once():
    t = Transcript(limits(produce=1_000, algorithm="window"))
    t.client_sends(m.produce(1, size=100_000))
    t.broker_answers(m.produced(1))
    for limit in (2_000, 1_000, 2_000):
        t.configure(limits(produce=limit, algorithm="window"))
    t.passes(44.9)
    assert t.paused
    t.passes(0.2)
    assert not t.paused


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_debt_below_a_millisecond_mutes_nobody(algorithm):
    t = Transcript(limits(produce=1_000_000, algorithm=algorithm))
    t.client_sends(m.produce(1, size=10_000_000))
    for number in (2, 3, 4, 5):
        t.client_sends(m.produce(number, size=100))  # a tenth of a millisecond each
        assert not t.paused
    assert t.row().throttled_total == 0
    t.client_sends(m.produce(6, size=100))
    assert t.paused
    t.broker_answers(*(m.produced(number) for number in range(1, 7)))
    t.passes(0.001)
    assert not t.paused


def test_changed_limit_mutes_no_unmuted_client():
    t = over_quota()
    t.client_sends(m.produce(1, size=9_999))
    t.configure(limits(produce=1))
    assert not t.paused
    assert t.alarm is None


def test_client_keeps_recent_use_when_its_bucket_changes():
    t = Transcript(limits())
    t.client_sends(m.produce(1, size=9_000))
    t.configure(QuotaSettings((EntityQuota(ClientQuotaEntity("ANONYMOUS"), {"producer_byte_rate": 1_000.0}),)))
    t.client_sends(m.produce(2, size=1_500))
    t.broker_answers(m.produced(1), m.produced(2))
    t.client_got(m.produced(1, throttle_time_ms=500), m.produced(2, throttle_time_ms=500))


# The bound of requests in flight.


def test_client_over_in_flight_limit_is_unread_until_half():
    t = Transcript()
    t.client_sends(*(m.heartbeat(number) for number in range(MAX_IN_FLIGHT)))
    assert not t.paused
    t.client_sends(m.heartbeat(MAX_IN_FLIGHT))
    assert t.paused
    t.broker_answers(*(m.beat(number) for number in range(MAX_IN_FLIGHT // 2)))
    assert t.paused
    t.broker_answers(m.beat(MAX_IN_FLIGHT // 2))
    assert not t.paused
    t.client_sends(m.heartbeat(9_999))
    assert len(t.core.in_flight) == MAX_IN_FLIGHT // 2 + 1


def test_produce_stream_stops_at_in_flight_limit():
    t = Transcript()
    for number in range(MAX_IN_FLIGHT + 1):
        t.client_sends(m.produce(number))
    assert t.paused
    t.broker_answers(*(m.produced(number) for number in range(MAX_IN_FLIGHT + 1)))
    assert not t.paused
    assert t.core.idle


def test_reading_resumes_after_mute_and_in_flight_limit():
    t = Transcript(limits(produce=1_000))
    t.client_sends(*(m.heartbeat(number) for number in range(MAX_IN_FLIGHT)), m.produce(5_000, size=OVER))
    assert t.paused
    t.broker_answers(*(m.beat(number) for number in range(MAX_IN_FLIGHT)), m.produced(5_000))
    assert t.paused
    t.passes(0.5)
    assert not t.paused


def test_mute_may_end_before_in_flight_limit():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(5_000), *(m.heartbeat(number) for number in range(MAX_IN_FLIGHT)))
    t.client_sends_into_the_loop(m.heartbeat(5_001))
    t.broker_answers(m.fetched(5_000, size=OVER))
    t.passes(0.5)
    assert not t.core.throttle.active
    assert t.paused
    t.broker_answers(*(m.beat(number) for number in range(MAX_IN_FLIGHT)))
    assert not t.paused
    t.broker_answers(m.beat(5_001))
    assert t.core.idle


@pytest.mark.parametrize("request_of", [lambda number: m.produce(number, size=5_000), m.metadata], ids=["produce", "other"])
def test_in_flight_limit_holds_at_any_chunk_end(request_of):
    """Each chunk ends within a request, whose rest must still be forwarded."""
    t = Transcript()
    stream = b"".join(request_of(number) for number in range(2 * MAX_IN_FLIGHT))
    edges = range(0, len(stream), 3 * len(request_of(0)))
    for start, end in pairwise([0, *(edge - 7 for edge in edges[1:])]):
        t.client_sends_into_the_loop(stream[start:end])
    assert len(t.core.in_flight) <= MAX_IN_FLIGHT + 3
    assert t.paused


def test_held_chunk_is_no_more_than_one_read():
    """While a client is muted, the gateway holds only the bytes that the event loop had already read."""
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(1))
    t.broker_answers(m.fetched(1, size=OVER))
    t.client_sends(*(m.heartbeat(number) for number in range(100)))
    assert t.paused
    assert len(t.socket) == len(m.heartbeat(0)) * 100


def test_throttled_address_is_shown_with_its_bucket():
    t = over_quota()
    t.core.throttle.origin.address = "10.0.0.7"
    t.client_sends(m.produce(1))
    assert t.row().addresses == ()
    t.client_sends(m.produce(2, size=OVER))
    assert t.row().addresses == ("10.0.0.7",)


def test_throttled_answers_of_a_chunk_go_out_in_one_write():
    """Each write costs a packet, and perhaps a TLS record."""
    t = over_quota()
    t.client_sends(*[m.produce(number, size=500) for number in (1, 2)], m.produce(3, size=OVER))
    written = []
    t.core.responses.writer = PassingWriter(written.append)
    t.broker_answers(*[m.produced(number) for number in (1, 2, 3)])
    assert written == [b"".join([m.produced(number, throttle_time_ms=1_500) for number in (1, 2, 3)])]
