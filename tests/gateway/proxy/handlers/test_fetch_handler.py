"""Fetch under a quota, as a transcript: admitted, capped, charged by its response, or answered empty."""

import tracemalloc
from uuid import UUID

import pytest

from gateway.proxy.handler import Request
from gateway.proxy.states import MUTED
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.kind_buckets import BUCKET_IDLE_SECONDS
from gateway.quotas.settings import QuotaSettings
from protocol.api_keys import ApiKey
from protocol.headers import parse_request_header
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import Transcript, gateway_address, limits
from tests.gateway.quotas.engines import bucket_of
from tests.protocol import codec
from tests.protocol.samples import with_length

BURST = 10_000
OUTSIDE = (0, -1)  # a Fetch outside of any fetch session
VERSIONS = [4, 7, 11, 12, 13, 16, 17, 18]
WITH_SESSIONS = VERSIONS[1:]


def over_quota(*, by=0.5, version=12):
    """A consumer that has exceeded its quota by `by` seconds and has waited for its throttle time. Another one continues."""
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(90, version=version))
    t.broker_answers(m.fetched(90, version=version, size=BURST))
    bucket_of(t.engine, "fetch", "ANONYMOUS", "etl", t.now).charge(round(by * 1_000), t.now)
    t.broker_got(m.fetch(90, version=version, max_bytes=BURST))
    t.client_got(m.fetched(90, version=version, size=BURST))
    assert not t.paused
    return t


# The reservation for the next consumer.


def eager(engine=None):
    """A consumer that has just got 500 bytes of records and continues."""
    t = Transcript(limits(fetch=1_000)) if engine is None else Transcript(engine=engine)
    response = m.fetched(1, records=m.batch(400))
    t.client_sends(m.fetch(1))
    t.broker_answers(response)
    return t


def pipelining():
    """A consumer with a full bucket. Weir knows that several of its batches fit into the bucket."""
    t = eager()
    t.passes(10)
    t.broker_inbox.clear()
    t.client_inbox.clear()
    return t


def promised(t):
    return bucket_of(t.engine, "fetch", "ANONYMOUS", "etl", t.now).line.promised


def test_consumer_with_records_has_bytes_reserved():
    t = eager()
    t.client_sends(m.fetch(2))
    assert promised(t) > 400
    t.broker_answers(m.fetched_nothing(2))
    assert promised(t) == 0
    t.client_sends(m.fetch(3))
    assert promised(t) == 0, "it got no records: an idle consumer blocks nobody"


def test_closing_releases_reservation():
    t = eager()
    t.client_sends(m.fetch(2))
    t.core.close(t.now)
    assert promised(t) == 0


def test_one_of_two_fetches_on_empty_bucket_passes():
    one = eager()
    other = eager(one.engine)
    bucket = bucket_of(one.engine, "fetch", "ANONYMOUS", "etl", one.now)
    bucket.charge(round(bucket.meter.tokens(one.now)), one.now)  # the bucket is empty without debt
    one.client_sends(m.fetch(2))
    assert bucket.line.promised >= 400, "a whole batch comes, however little was asked for"
    assert not one.paused
    other.client_sends(m.fetch(2))
    assert other.paused, "the other one waits until what the first will get is paid for"


def test_reservation_expires_without_response():
    t = eager()
    t.client_sends(m.fetch(2))
    assert promised(t) > 400
    t.passes(2)
    other = Transcript(engine=t.engine)
    other.now = t.now
    other.client_sends(m.fetch(1))
    assert promised(other) == 50, "only the other one's first Fetch is still counted"
    t.broker_answers(m.fetched_nothing(2))
    assert promised(t) == 50


@pytest.mark.parametrize("max_bytes", [0, -1, -(2**31)])
def test_reservation_is_never_negative(max_bytes):
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(1, max_bytes=max_bytes))
    assert promised(t) >= 0


def test_long_polls_do_not_reserve_whole_burst():
    first = Transcript(limits(fetch=1_000))
    for t in (first, Transcript(engine=first.engine), Transcript(engine=first.engine)):
        t.client_sends(m.fetch(1))
        assert not t.paused
    assert promised(first) <= BURST


# Pipelined.


def test_pipelined_fetch_waits_for_the_balance():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(1), m.fetch(2), m.metadata(3))
    t.broker_got(m.fetch(1, max_bytes=BURST))
    assert t.paused
    t.broker_answers(m.fetched(1, size=4_000))
    t.broker_got(m.fetch(2, max_bytes=6_000), m.metadata(3))
    assert not t.paused


def test_pipelined_fetch_waits_for_an_idle_consumer_too():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(1))
    t.broker_answers(m.fetched_nothing(1))
    t.client_sends(m.fetch(2), m.fetch(3))
    assert t.paused
    t.passes(3)
    assert t.paused, "a reservation ends, but the broker may still answer"
    t.broker_answers(m.fetched_nothing(2))
    assert not t.paused


def test_pipelined_fetches_pass_while_all_of_them_fit():
    t = pipelining()
    t.client_sends(*(m.fetch(number, max_bytes=3_000) for number in range(6)))
    limits = (3_000, 3_000, 3_000, 800, 1)  # whole batches of 400 bytes; for a limit of one byte, a broker sends one batch
    t.broker_got(*(m.fetch(number, max_bytes=each) for number, each in enumerate(limits)))
    assert t.paused


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_pipelined_fetch_waits_through_a_mute(algorithm):
    t = Transcript(limits(fetch=1_000, algorithm=algorithm))
    t.client_sends(m.fetch(1), m.fetch(2))
    t.broker_answers(m.fetched(1, size=BURST + 500))
    t.broker_inbox.clear()
    assert t.paused
    t.passes(0.5)
    max_bytes = 50 if algorithm == "token_bucket" else BURST
    t.broker_got(m.fetch(2, max_bytes=max_bytes))


def test_removed_quota_releases_pipelined_fetch():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(1), m.fetch(2))
    t.configure(limits())
    t.broker_answers(m.fetched(1))
    t.broker_got(m.fetch(1, max_bytes=BURST), m.fetch(2))
    t.configure(limits(fetch=1_000))
    t.client_sends(m.fetch(3))
    assert not t.paused


# In turn.


def test_throttle_time_includes_other_waiting_consumers():
    one = Transcript(limits(fetch=1_000))
    other = Transcript(engine=one.engine)
    one.client_sends(m.fetch(1))
    one.broker_answers(m.fetched(1, records=m.batch(BURST + 400)))
    other.client_sends(m.fetch(1, session=OUTSIDE))
    size = one.row("fetch").amount_total
    one.client_got(m.fetched(1, records=m.batch(BURST + 400), throttle_time_ms=size - BURST))
    other.client_got(m.fetched_nothing(1, throttle_time_ms=size - BURST + size))


def test_unrelated_quota_change_keeps_turns():
    one = Transcript(limits(fetch=1_000))
    other = Transcript(engine=one.engine)
    one.client_sends(m.fetch(1))
    one.broker_answers(m.fetched(1, size=BURST + 500))
    other.client_sends(m.fetch(1, session=OUTSIDE))
    until = other.core.throttle.until
    other.configure(limits(fetch=1_000, produce=77))
    assert other.core.throttle.until == until


# Charged by its response.


@pytest.mark.parametrize("version", [0, 1, *VERSIONS])
def test_fetch_is_charged_four_bytes_plus_response_body(version):
    t = Transcript()
    response = m.fetched(1, version=version, records=bytes(777))
    t.client_sends(m.fetch(1, version=version))
    t.broker_answers(response)
    header = 4 + 4 + (1 if version >= 12 else 0)
    assert t.row("fetch").amount_total == 4 + len(response) - header


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("by", [None, 1, 24, 1_000])
def test_response_over_quota_reports_throttle_and_mutes(version, by):
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(1, version=version))
    t.broker_answers(m.fetched(1, version=version, size=BURST + 500), by=by)
    t.client_got(m.fetched(1, version=version, size=BURST + 500, throttle_time_ms=500))
    assert t.paused
    t.client_sends(m.metadata(2))
    t.broker_got(m.fetch(1, version=version, max_bytes=BURST))
    t.passes(0.5)
    t.broker_got(m.metadata(2))
    assert not t.paused


def test_fetch_v0_mutes_without_throttle_field():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(1, version=0))
    t.broker_answers(m.fetched(1, version=0, size=BURST + 500))
    t.client_got(m.fetched(1, version=0, size=BURST + 500))
    assert t.paused


def test_consumers_that_ignore_throttle_are_counted():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(1))
    t.broker_answers(m.fetched(1, size=BURST + 500))
    t.passes(0.1)
    t.client_sends(m.fetch(2))
    t.passes(0.4)
    assert t.row("fetch").early_total == 1
    t.broker_got(m.fetch(1, max_bytes=BURST), m.fetch(2, max_bytes=50))


def test_second_throttle_mutes_client_again():
    """The first Fetch times out while its response still arrives. The second response begins in the same chunk."""
    t = pipelining()
    t.client_sends(m.fetch(1, max_bytes=4_000), m.fetch(2, max_bytes=4_000))
    first, second = m.fetched(1, size=BURST + 500), m.fetched(2, size=2_000)
    t.broker_answers(first[:100])
    t.passes(1)
    t.broker_answers(first[100:] + second)
    assert t.core.requests._direction.reasons == MUTED
    t.client_sends(m.metadata(3))
    assert t.paused
    assert t.socket == m.metadata(3)
    t.passes(1.5)
    assert not t.paused
    t.broker_got(m.fetch(1, max_bytes=4_000), m.fetch(2, max_bytes=4_000), m.metadata(3))


def test_pipelined_response_lengthens_throttle():
    t = pipelining()
    t.client_sends(m.fetch(1, max_bytes=4_000), m.fetch(2, max_bytes=4_000))
    t.broker_answers(m.fetched(1, size=BURST + 500))
    t.passes(0.1)
    t.broker_answers(m.fetched(2, size=1_000))
    t.client_got(m.fetched(1, size=BURST + 500, throttle_time_ms=500), m.fetched(2, size=1_000, throttle_time_ms=1_400))
    t.passes(1.399)
    assert t.paused
    t.passes(0.001)
    assert not t.paused


def test_elapsed_throttle_restarts_before_its_response():
    t = Transcript(limits(produce=1_000, fetch=1_000))
    t.client_sends(m.fetch(1), m.produce(2, size=BURST + 500))
    t.passes(1)
    t.broker_answers(m.fetched(1, size=BURST + 300))
    t.broker_answers(m.produced(2))
    t.client_got(m.fetched(1, size=BURST + 300, throttle_time_ms=300), m.produced(2, throttle_time_ms=300))
    t.passes(0.299)
    assert t.paused
    t.passes(0.001)
    assert not t.paused


def test_response_mutes_client_after_its_unfinished_request():
    t = Transcript(limits(fetch=1_000))
    request = m.produce(2, size=5_000)
    t.client_sends(m.fetch(1), request[:500])
    t.broker_answers(m.fetched(1, size=BURST + 500))
    assert not t.paused
    assert t.core.requests.unfinished
    t.client_sends(request[500:], m.heartbeat(3))
    assert t.paused
    t.broker_got(m.fetch(1, max_bytes=BURST), request)
    t.passes(0.5)
    t.broker_got(m.heartbeat(3))
    assert not t.core.requests.unfinished


def test_fetch_is_charged_to_client_id_of_its_request():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(1), m.produce(2, client_id="other"))
    t.broker_answers(m.fetched(1, size=BURST + 500), m.produced(2))
    assert t.row("fetch").amount_total == BURST + 500
    assert t.paused


# Its limits are lowered.


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("wanted", "gets"),
    [
        ({"max_bytes": 50_000_000, "min_bytes": 1}, {"max_bytes": BURST, "min_bytes": 1}),
        ({"max_bytes": 50_000_000, "min_bytes": 20_000}, {"max_bytes": BURST, "min_bytes": BURST}),
        ({"max_bytes": BURST, "min_bytes": 5_000}, {"max_bytes": BURST, "min_bytes": 5_000}),
        ({"max_bytes": 9_000, "min_bytes": 20}, {"max_bytes": 9_000, "min_bytes": 20}),
    ],
)
def test_fetch_asks_for_no_more_than_balance(version, wanted, gets):
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.metadata(1), m.fetch(2, version=version, **wanted), m.metadata(3))
    t.broker_got(m.metadata(1), m.fetch(2, version=version, **gets), m.metadata(3))


def peak_bytes(t, handler, frame):
    """The most memory that the handler takes to decide on a request with 250 KiB behind it in its chunk."""
    data = frame + bytes(250 * 1024)
    header = parse_request_header(data, 4, len(frame), len(frame))
    decided = Request(data, 0, len(frame), header, t.now)
    tracemalloc.start()
    try:
        verdict = handler.handle(decided, t.now)
        return verdict, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_limited_fetch_copies_no_other_bytes_of_its_chunk():
    t = Transcript(limits(fetch=1_000))
    verdict, peak = peak_bytes(t, t.core.connection.fetch, m.fetch(1))
    assert verdict.frame == m.fetch(1, max_bytes=BURST)
    assert peak < 100_000


def test_throttled_share_fetch_copies_no_other_bytes():
    t = over_quota()
    verdict, peak = peak_bytes(t, t.core.connection.share_fetch, acknowledging())
    assert verdict.frame == acknowledging(**NO_RECORDS)
    assert peak < 100_000


def test_fetch_up_to_v2_lowers_min_bytes():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(1, version=2, min_bytes=20_000))
    t.broker_got(m.fetch(1, version=2, min_bytes=BURST))


def test_fetch_limit_is_whole_number_of_batches():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(1))
    t.broker_answers(m.fetched(1, records=m.batch(3_000)))
    t.client_sends(m.fetch(2))
    t.broker_got(m.fetch(1, max_bytes=BURST), m.fetch(2, max_bytes=6_000))


def test_unenforced_quota_lowers_nothing():
    t = Transcript(limits(fetch=1_000, enforce=False))
    t.client_sends(m.fetch(1))
    t.broker_got(m.fetch(1))


# Throttled.


@pytest.mark.parametrize("version", [0, 1, *VERSIONS])
def test_fetch_outside_session_is_answered_locally(version):
    t = over_quota(version=version) if version >= 3 else over_quota()
    t.client_sends(m.metadata(1), m.fetch(2, version=version, session=OUTSIDE), m.metadata(3))
    t.broker_got(m.metadata(1))
    t.client_got()  # not before its turn
    t.passes(0.1)
    t.broker_answers(m.described(1, []))
    t.client_got(m.described(1, [], throttle_time_ms=400), m.fetched_nothing(2, version=version, throttle_time_ms=400))
    assert t.paused
    t.passes(0.4)
    t.broker_got(m.metadata(3))
    assert t.row("fetch").amount_total == BURST + 500  # charged nothing


@pytest.mark.parametrize("version", WITH_SESSIONS)
@pytest.mark.parametrize("session", [(0, 0), (77, 0)], ids=["first", "next"])
def test_fetch_that_begins_a_session_is_answered_locally(version, session):
    """As by a broker that throttles: no session begins. Otherwise each new connection would cost the broker a batch."""
    t = over_quota(version=version)
    t.client_sends(m.fetch(2, version=version, session=session))
    t.broker_got()
    t.client_got(m.fetched_nothing(2, version=version, throttle_time_ms=500))


def test_session_on_a_new_connection_waits_for_the_debt():
    other = Transcript(engine=over_quota().engine)
    other.client_sends(m.fetch(1, session=(77, 3)), m.metadata(2))
    other.broker_got()
    assert other.paused
    other.passes(0.5)
    other.broker_got(m.fetch(1, session=(77, 3), max_bytes=50), m.metadata(2))


def test_local_answer_with_no_predecessor_goes_out_at_once():
    t = over_quota()
    t.client_sends(m.fetch(2, session=OUTSIDE))
    t.broker_got()
    t.client_got(m.fetched_nothing(2, throttle_time_ms=500))
    assert t.core.idle


def test_local_answer_waits_for_unfinished_response():
    t = over_quota()
    t.client_sends(m.heartbeat(1))
    t.broker_answers(m.beat(1)[:9])
    t.client_sends(m.fetch(2, session=OUTSIDE))
    t.client_got(m.beat(1)[:9])
    t.broker_answers(m.beat(1)[9:])
    t.client_got(m.beat(1)[9:], m.fetched_nothing(2, throttle_time_ms=500))


@pytest.mark.parametrize("by", [1, 7, 50])
def test_throttled_fetch_in_pieces_never_reaches_broker(by):
    t = over_quota()
    t.client_sends(m.metadata(1), m.fetch(2, session=OUTSIDE), m.metadata(3), by=by)
    t.broker_got(m.metadata(1))
    t.broker_answers(m.described(1, []))
    t.client_got(m.described(1, [], throttle_time_ms=500), m.fetched_nothing(2, throttle_time_ms=500))
    t.passes(0.5)
    t.broker_got(m.metadata(3))
    assert not t.paused


@pytest.mark.parametrize("by", [None, 1, 9])
def test_rest_of_answered_request_is_dropped_after_throttle(by):
    t = over_quota()
    request = m.fetch(2, session=OUTSIDE)
    t.client_sends(request[:60])
    t.client_got(m.fetched_nothing(2, throttle_time_ms=500))
    t.passes(0.5)
    assert not t.paused
    t.client_sends(request[60:], m.metadata(3), by=by)
    t.broker_got(m.metadata(3))


def test_empty_answer_always_has_throttle_time():
    """Java and kafka-python treat a full answer without one as an error. Here the time is over before the Fetch's turn."""
    for session in (OUTSIDE, (4, 3)):
        t = over_quota()
        t.client_sends(m.metadata(1), m.fetch(2, session=session))
        t.passes(3)
        t.broker_answers(m.described(1, []))
        if session != OUTSIDE:
            t.broker_answers(m.fetched(2, session_id=4))
        t.client_got(m.described(1, []), m.fetched_nothing(2, throttle_time_ms=1, session_id=0 if session == OUTSIDE else 4))
        assert not t.paused


@pytest.mark.parametrize("version", WITH_SESSIONS)
@pytest.mark.parametrize("by", [None, 1, 30])
def test_fetch_in_session_asks_one_byte_and_is_emptied(version, by):
    t = over_quota(version=version)
    keys = {"version": version, "session": (77, 3)}
    t.client_sends(m.fetch(2, **keys, max_bytes=700, min_bytes=20), m.metadata(3))
    t.broker_got(m.fetch(2, **keys, max_bytes=1, min_bytes=0, max_wait_ms=0))
    t.broker_answers(m.fetched(2, version=version, session_id=77, size=3_000), by=by)
    t.client_got(m.fetched_nothing(2, version=version, session_id=77, throttle_time_ms=500))
    t.passes(0.5)
    t.broker_got(m.metadata(3))
    t.broker_answers(m.described(3, []))
    t.client_got(m.described(3, []))
    assert t.row("fetch").amount_total == BURST + 500


def in_debt(t):
    """Give the client's bucket a debt of half a second, as by another connection."""
    bucket = bucket_of(t.engine, "fetch", "ANONYMOUS", "etl", t.now)
    bucket.charge(round(bucket.meter.tokens(t.now)) + 500, t.now)
    t.broker_inbox.clear()
    t.client_inbox.clear()


def forwarded(t, version=12):
    """The Fetch that went to the broker."""
    request, t.broker_inbox[:] = bytes(t.broker_inbox), b""
    return codec.request_class(ApiKey.FETCH).decode(request, version=version, header=True, framed=True)


def session_ended(correlation_id, version, throttle_ms):
    values = {"throttle_time_ms": throttle_ms, "error_code": 71}
    return codec.encode_response(ApiKey.FETCH, version, values, correlation_id)


@pytest.mark.parametrize("version", WITH_SESSIONS)
@pytest.mark.parametrize("by", [None, 1, 30])
def test_drops_over_budget_end_the_session(version, by):
    """By KIP-74 a broker sends a whole batch for one byte. A second budget at the quota's rate pays for such batches."""
    t = over_quota(version=version)
    t.client_sends(m.fetch(2, version=version, session=(77, 3)))
    t.broker_answers(m.fetched(2, version=version, session_id=77, size=BURST + 5_000), by=by)
    t.passes(0.5)
    in_debt(t)
    t.client_sends(m.fetch(3, version=version, session=(77, 4)), by=by)
    t.client_got(session_ended(3, version, 500))
    t.broker_got()
    assert t.paused
    t.passes(0.5)
    in_debt(t)
    t.client_sends(m.fetch(4, version=version, session=(77, 0)), by=by)
    t.client_got(m.fetched_nothing(4, version=version, throttle_time_ms=500))
    t.broker_got()
    t.passes(5.0)
    in_debt(t)
    t.client_sends(m.fetch(5, version=version, session=(78, 1)), by=by)
    t.broker_got(m.fetch(5, version=version, session=(78, 1), max_bytes=1, min_bytes=0, max_wait_ms=0))


@pytest.mark.parametrize("version", WITH_SESSIONS)
@pytest.mark.parametrize("max_bytes", [100, 50_000_000])
def test_next_session_ends_the_one_before_at_broker(version, max_bytes):
    """Clients forget the id of an ended session with the empty answer, and the broker would keep it for minutes."""
    t = over_quota(version=version)
    t.client_sends(m.fetch(2, version=version, session=(77, 3)))
    t.broker_answers(m.fetched(2, version=version, session_id=77, size=BURST + 5_000))
    t.passes(0.5)
    in_debt(t)
    t.client_sends(m.fetch(3, version=version, session=(77, 4)))
    t.client_got(session_ended(3, version, 500))
    t.passes(1.0)
    for correlation_id, named in ((4, 77), (5, 0)):
        t.client_sends(m.fetch(correlation_id, version=version, max_bytes=max_bytes))
        sent = forwarded(t, version)
        assert (sent.session_id, sent.session_epoch) == (named, 0)
        assert 0 < sent.max_bytes <= max_bytes
        t.broker_answers(m.fetched_nothing(correlation_id, version=version, session_id=78))


@pytest.mark.parametrize("version", WITH_SESSIONS)
@pytest.mark.parametrize("session", [(77, 0), (77, -1)])
def test_session_that_a_local_answer_hides_is_ended(version, session):
    """As Java after a lost connection: the Fetch names the session to end, and the empty answer makes it forget the id."""
    t = over_quota(version=version)
    t.client_sends(m.fetch(2, version=version, session=session))
    t.client_got(m.fetched_nothing(2, version=version, throttle_time_ms=500))
    t.passes(1.0)
    for correlation_id, named in ((3, 77), (4, 0)):
        t.client_sends(m.fetch(correlation_id, version=version))
        sent = forwarded(t, version)
        assert (sent.session_id, sent.session_epoch) == (named, 0)
        t.broker_answers(m.fetched_nothing(correlation_id, version=version, session_id=78))


@pytest.mark.parametrize("session", [(77, 0), (77, -1)])
def test_client_that_ends_its_session_keeps_its_request(session):
    t = over_quota()
    t.client_sends(m.fetch(2, session=(77, 3)))
    t.broker_answers(m.fetched(2, session_id=77, size=BURST + 5_000))
    t.passes(0.5)
    in_debt(t)
    t.client_sends(m.fetch(3, session=(77, 4)))
    t.passes(1.0)
    for correlation_id, its_own in ((4, session), (5, (0, 0))):
        t.client_sends(m.fetch(correlation_id, session=its_own))
        sent = forwarded(t)
        assert (sent.session_id, sent.session_epoch) == its_own
        t.broker_answers(m.fetched_nothing(correlation_id, session_id=78))


def test_unanswered_throttled_fetches_count_as_dropped():
    """Many connections may send Fetches in debt before the first answer arrives."""
    first = Transcript(limits(fetch=1_000))
    second = Transcript(engine=first.engine)
    for t in (first, second):
        t.client_sends(m.fetch(1))
        t.broker_answers(m.fetched_nothing(1))
    for t in (first, second):
        in_debt(t)
        t.client_sends(m.fetch(2, session=(77, 3)))
    first.broker_got(m.fetch(2, session=(77, 3), max_bytes=1, min_bytes=0, max_wait_ms=0))
    second.broker_got()
    first.broker_answers(m.fetched_nothing(2, session_id=77))
    second.passes(16.0)
    in_debt(second)
    second.client_sends(m.fetch(3, session=(77, 4)))
    second.broker_got(m.fetch(3, session=(77, 4), max_bytes=1, min_bytes=0, max_wait_ms=0))


@pytest.mark.parametrize("version", WITH_SESSIONS)
def test_throttled_answer_without_records_keeps_its_partitions(version):
    t = over_quota(version=version)
    keys = {"version": version, "session_id": 77, "records": b""}
    t.client_sends(m.fetch(2, version=version, session=(77, 3)))
    t.broker_answers(m.fetched(2, **keys))
    t.client_got(m.fetched(2, **keys, throttle_time_ms=500))
    size = len(m.fetched(2, **keys)) - 4 - (version >= 12)
    assert t.row("fetch").amount_total == BURST + 500 + size


def mixed(correlation_id, busy, *, version=12, **values):
    """An answer in a fetch session: `busy` has the partitions with records, and two others have only news."""
    moved = {"partition_index": 1, "error_code": 0, "high_watermark": 99, "records": b""}
    failed = {"partition_index": 2, "error_code": 6, "high_watermark": -1, "records": None}
    with_records = [{"partition_index": index, "high_watermark": 50, "records": m.batch(200)} for index in busy]
    topics = {m.TOPIC: [*with_records, moved, failed], "busy": with_records}
    values["responses"] = [
        ({"topic_id": UUID(bytes=m.topic_id(name))} if version >= 13 else {"topic": name}) | {"partitions": partitions}
        for name, partitions in topics.items()
        if partitions
    ]
    return codec.encode_response(ApiKey.FETCH, version, values | {"session_id": 77}, correlation_id)


@pytest.mark.parametrize("version", WITH_SESSIONS)
def test_throttled_answer_keeps_partitions_without_records(version):
    """A broker sends the high watermark or the error of a partition only once in a session."""
    t = over_quota(version=version)
    t.client_sends(m.fetch(2, version=version, session=(77, 3)))
    t.broker_answers(mixed(2, [0, 5], version=version))
    t.client_got(mixed(2, [], version=version, throttle_time_ms=500))
    size = len(mixed(2, [], version=version)) - 4 - (version >= 12)
    assert t.row("fetch").amount_total == BURST + 500 + size


def test_kept_partitions_have_translated_addresses():
    t = over_quota(version=16)
    t.client_sends(m.fetch(2, version=16, session=(77, 3)))
    t.broker_answers(mixed(2, [0], version=16, node_endpoints=m.node_endpoints(m.BROKERS)))
    ours = m.node_endpoints([(node_id, *gateway_address(node_id, host, port)) for node_id, host, port in m.BROKERS])
    t.client_got(mixed(2, [], version=16, node_endpoints=ours, throttle_time_ms=500))


def test_throttled_answer_in_chunks_is_emptied():
    t = over_quota()
    t.client_sends(m.fetch(2, session=(77, 3)))
    t.broker_answers(m.fetched(2, session_id=77, records=b""), by=30)
    t.client_got(m.fetched_nothing(2, session_id=77, throttle_time_ms=500))


def test_emptied_answer_reports_longer_throttle():
    t = over_quota()
    t.client_sends(m.fetch(2, session=(5, 1)))
    t.broker_answers(m.fetched(2, session_id=5, throttle_time_ms=3_000))
    t.client_got(m.fetched_nothing(2, session_id=5, throttle_time_ms=3_000))


@pytest.mark.parametrize("by", [None, 1])
def test_fetch_error_passes_through(by):
    t = over_quota()
    t.client_sends(m.fetch(2, session=(77, 3)))
    t.broker_answers(m.fetched(2, error_code=71, records=None), by=by)
    t.client_got(m.fetched(2, error_code=71, records=None, throttle_time_ms=500))


@pytest.mark.parametrize("version", WITH_SESSIONS)
def test_closing_fetch_session_is_never_throttled(version):
    t = over_quota(version=version)
    t.client_sends(m.fetch(2, version=version, session=(77, -1), topics=False, max_bytes=20))
    t.broker_got(m.fetch(2, version=version, session=(77, -1), topics=False, max_bytes=20))
    assert t.row("fetch").throttled_total == 1  # by `over_quota`


@pytest.mark.parametrize("version", [12, 17])
@pytest.mark.parametrize("tag", [b"\x63\x03abc", b"\x63\x40" + bytes(64)], ids=["short", "long"])
@pytest.mark.parametrize("by", [None, 1, 10, 30])
def test_response_with_header_tags_is_charged_once(version, tag, by):
    def tagged(frame):
        return with_length(frame[4:8] + b"\x01" + tag + frame[9:])

    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(1, version=version))
    t.broker_answers(tagged(m.fetched(1, version=version, size=BURST + 500)), by=by)
    t.client_got(tagged(m.fetched(1, version=version, size=BURST + 500, throttle_time_ms=500 + len(tag))))
    assert t.row("fetch").amount_total == BURST + 500 + len(tag)


@pytest.mark.parametrize("by", [None, 1, 10, 30])
def test_response_with_header_tags_is_emptied(by):
    t = over_quota()
    t.client_sends(m.fetch(2, session=(77, 3)))
    answer = m.fetched(2, session_id=77)
    t.broker_answers(with_length(answer[4:8] + b"\x01\x63\x20" + bytes(32) + answer[9:]), by=by)
    t.client_got(m.fetched_nothing(2, session_id=77, throttle_time_ms=500))


# `algorithm: window`: as in Kafka, a response over the quota is not sent.


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("by", [None, 1, 30])
def test_window_empties_response_over_quota_uncharged(version, by):
    t = Transcript(limits(fetch=1_000, algorithm="window"))
    session_id = 77 if version >= 7 else 0
    t.client_sends(m.fetch(1, version=version), m.fetch(2, version=version))
    t.broker_answers(m.fetched(1, version=version, size=9_000, session_id=session_id))
    t.broker_answers(m.fetched(2, version=version, size=3_000, session_id=session_id), by=by)
    t.client_got(
        m.fetched(1, version=version, size=9_000, session_id=session_id),
        m.fetched_nothing(2, version=version, session_id=session_id, throttle_time_ms=2_000),
    )
    assert t.paused
    assert t.row("fetch").amount_total == 9_000
    t.passes(2)
    assert not t.paused
    t.client_sends(m.fetch(3, version=version))
    t.broker_answers(m.fetched(3, version=version, size=900))
    t.client_got(m.fetched(3, version=version, size=900))


@pytest.mark.parametrize("version", WITH_SESSIONS)
def test_window_keeps_partitions_without_records(version):
    t = Transcript(limits(fetch=1_000, algorithm="window"))
    t.client_sends(m.fetch(1, version=version, session=(77, 3)))
    bucket_of(t.engine, "fetch", "ANONYMOUS", "etl", t.now).charge(BURST, t.now)
    t.broker_answers(mixed(1, [0], version=version))
    size = len(mixed(1, [], version=version)) - 4 - (version >= 12)
    assert t.row("fetch").amount_total == BURST + size
    (left,) = (int.from_bytes(t.client_inbox[at : at + 4], "big") for at in [8 + (version >= 12)])
    assert left > 0
    t.client_got(mixed(1, [], version=version, throttle_time_ms=left))


def test_window_empties_first_answer_of_a_session_wholly():
    """Clients refuse a full answer that lacks a part of the partitions."""
    t = Transcript(limits(fetch=1_000, algorithm="window"))
    t.client_sends(m.fetch(1))
    bucket_of(t.engine, "fetch", "ANONYMOUS", "etl", t.now).charge(BURST + 500, t.now)
    t.broker_answers(mixed(1, [0]))
    size = len(mixed(1, [0])) - 5
    t.client_got(m.fetched_nothing(1, session_id=77, throttle_time_ms=500 + size))


ANSWERS_WITHOUT_RECORDS = {
    "high watermark": m.fetched(1, session_id=77, records=b""),
    "partition error": mixed(1, []),
    "session not found": m.fetched(1, records=None, error_code=70),
}


@pytest.mark.parametrize(("continued", "named"), [(False, 77), (True, 0)])
def test_window_ends_session_that_client_forgets(continued, named):
    """Java takes an emptied answer as one without a session. franz-go continues the session."""
    t = Transcript(limits(fetch=1_000, algorithm="window"))
    t.client_sends(m.fetch(1))
    t.broker_answers(m.fetched(1, session_id=77, size=20_000))
    t.passes(60.0)
    if continued:
        t.client_sends(m.fetch(2, session=(77, 1)))
        t.broker_answers(m.fetched_nothing(2, session_id=77))
    t.broker_inbox.clear()
    t.client_sends(m.fetch(3))
    assert forwarded(t).session_id == named


@pytest.mark.parametrize("answer", ANSWERS_WITHOUT_RECORDS.values(), ids=ANSWERS_WITHOUT_RECORDS)
def test_window_sends_answers_without_records(answer):
    t = Transcript(limits(fetch=1_000, algorithm="window"))
    t.client_sends(m.fetch(1, session=(77, 3)))
    bucket_of(t.engine, "fetch", "ANONYMOUS", "etl", t.now).charge(BURST + 500, t.now)
    t.broker_answers(answer)
    throttled = bytearray(answer)
    throttled[9:13] = (500 + len(answer) - 5).to_bytes(4, "big")
    t.client_got(bytes(throttled))
    assert t.paused
    assert t.row("fetch").amount_total == BURST + 500 + len(answer) - 5


def test_window_empties_fetch_v0_response():
    t = Transcript(limits(fetch=1_000, algorithm="window"))
    t.client_sends(m.fetch(1, version=0))
    t.broker_answers(m.fetched(1, version=0, size=BURST + 500))
    t.client_got(m.fetched_nothing(1, version=0))
    assert t.paused


def test_window_sends_share_fetch_over_quota():
    t = Transcript(limits(fetch=1_000, algorithm="window"))
    bucket_of(t.engine, "fetch", "ANONYMOUS", "etl", t.now).charge(BURST, t.now)
    t.client_sends(SHARE_FETCH)
    t.broker_answers(shared(0))
    t.client_got(shared(len(shared(0)) - 5))
    assert t.paused


# Share groups.


SHARE_FETCH = m.share_fetch(2)


def shared(throttle_time_ms):
    values = {"throttle_time_ms": throttle_time_ms, "responses": []}
    return codec.encode_response(ApiKey.SHARE_FETCH, 1, values, 2)


def test_share_fetch_waits_for_debt_and_is_charged():
    t = over_quota()
    t.client_sends(SHARE_FETCH)
    t.broker_got()
    t.passes(0.499)
    t.broker_got()
    t.passes(0.002)
    t.broker_got(m.share_fetch(2, max_bytes=50))  # a twentieth of a second of the quota
    t.broker_answers(shared(0))
    charged = len(shared(0)) - 5
    t.client_got(shared(charged - 1))
    assert t.row("fetch").amount_total == BURST + 500 + charged
    assert t.paused


def test_share_fetch_that_ends_its_session_never_waits():
    t = over_quota()
    t.client_sends(m.share_fetch(2, epoch=-1))
    t.broker_got(m.share_fetch(2, epoch=-1))


def renewal(correlation_id=2, *, renews=True, max_bytes=0):
    values = {"group_id": "g", "member_id": "m", "share_session_epoch": 4, "max_records": 0, "topics": []}
    values |= {"max_bytes": max_bytes, "is_renew_ack": renews}
    return codec.encode_request(ApiKey.SHARE_FETCH, 2, values, correlation_id, "etl")


@pytest.mark.parametrize("by", [None, 1])
def test_renewal_of_acquisition_locks_never_waits(by):
    t = over_quota()
    t.client_sends(renewal(), renewal(3), by=by)
    t.broker_got(renewal(), renewal(3))


def acknowledging(correlation_id=2, *, version=1, **changed):
    batch = {"first_offset": 3, "last_offset": 9, "acknowledge_types": [1]}
    partition = {"partition_index": 0, "acknowledgement_batches": [batch]}
    topic = {"topic_id": UUID(int=7), "partitions": [partition]}
    values = {"group_id": "g", "member_id": "m", "share_session_epoch": 4, "max_wait_ms": 500, "topics": [topic]}
    values |= {"min_bytes": 1, "max_bytes": 5_000, "max_records": 700, "batch_size": 700}
    return codec.encode_request(ApiKey.SHARE_FETCH, version, values | changed, correlation_id, "etl")


NO_RECORDS = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1, "max_records": 0}


@pytest.mark.parametrize("by", [None, 1])
@pytest.mark.parametrize("version", [1, 2])
def test_acknowledgements_do_not_wait_for_debt(version, by):
    t = over_quota()
    t.client_sends(acknowledging(version=version), by=by)
    t.broker_got(acknowledging(version=version, **NO_RECORDS))
    assert t.paused


def test_acknowledgements_behind_another_request_pass():
    t = over_quota()
    t.client_sends(m.metadata(1), acknowledging())
    t.broker_got(m.metadata(1), acknowledging(**NO_RECORDS))


def test_answer_to_acknowledgements_is_charged_and_mutes_once():
    t = over_quota()
    t.client_sends(acknowledging())
    t.broker_answers(shared(0))
    t.client_got(shared(500))
    row = t.row("fetch")
    assert (row.amount_total, row.throttled_total) == (BURST + 500 + len(shared(0)) - 5, 1 + 1)


def test_share_fetch_gets_records_after_the_mute():
    t = over_quota()
    t.client_sends(acknowledging(2))
    t.broker_answers(shared(0))
    t.passes(0.52)
    t.broker_inbox.clear()
    t.client_sends(acknowledging(3))
    t.broker_got(acknowledging(3, max_bytes=50))


def test_share_fetch_of_no_bytes_without_renewal_is_over_quota():
    """A broker may answer it with a whole batch."""
    t = over_quota()
    t.client_sends(renewal(renews=False))
    t.broker_got(renewal(renews=False, max_bytes=1))
    assert t.paused


def test_answer_to_renewal_lets_no_further_share_fetch_pass():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(renewal(2), m.share_fetch(3), m.share_fetch(4))
    t.broker_got(renewal(2), m.share_fetch(3, max_bytes=BURST))
    t.broker_answers(codec.encode_response(ApiKey.SHARE_FETCH, 2, {"responses": []}, 2))
    t.broker_got()
    t.broker_answers(codec.encode_response(ApiKey.SHARE_FETCH, 1, {"responses": []}, 3))
    assert t.broker_inbox[8:12] == m.share_fetch(4)[8:12]


def test_pipelined_share_fetches_go_one_by_one():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(SHARE_FETCH, m.share_fetch(3))
    t.broker_got(m.share_fetch(2, max_bytes=BURST))
    t.broker_answers(shared(0))
    t.broker_got(m.share_fetch(3, max_bytes=BURST - len(shared(0)) + 5))


def test_negative_maximum_cancels_no_reservation():
    t = Transcript(limits(fetch=1_000))
    bucket = bucket_of(t.engine, "fetch", "ANONYMOUS", "etl", t.now)
    t.client_sends(m.share_fetch(2, max_bytes=-(2**31)))
    bucket.line.reserve(3_000)  # by another consumer
    assert bucket.line.reserved(t.now) == 3_000


def test_share_fetch_without_quota_passes_unchanged():
    t = Transcript()
    t.client_sends(SHARE_FETCH, SHARE_FETCH)
    t.broker_got(SHARE_FETCH, SHARE_FETCH)


def test_share_fetch_ignores_pending_one_without_quota():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(SHARE_FETCH)
    t.configure(QuotaSettings((EntityQuota(ClientQuotaEntity("ANONYMOUS", "etl"), {"consumer_byte_rate": 1_000.0}),)))
    t.broker_answers(shared(0))
    t.broker_inbox.clear()
    t.client_sends(m.share_fetch(3))
    assert t.broker_inbox


def test_share_fetch_ignores_pending_one_if_not_enforced():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(SHARE_FETCH)
    t.configure(limits(fetch=1_000, enforce=False))
    t.broker_inbox.clear()
    t.client_sends(m.share_fetch(3))
    t.broker_got(m.share_fetch(3))


def test_late_answer_is_charged_though_its_bucket_is_forgotten():
    t = Transcript(limits(fetch=1_000))
    t.client_sends(m.fetch(1, session=OUTSIDE))
    t.client_sends(m.fetch(2, session=OUTSIDE, client_id="another"))  # gives the bucket of the first one back
    t.passes(BUCKET_IDLE_SECONDS)
    t.engine.tick(t.now)
    t.broker_answers(m.fetched(1, size=15_000))
    again = Transcript(engine=t.engine)
    again.now = t.now
    again.client_sends(m.fetch(3, session=OUTSIDE))
    again.broker_got()
    again.client_got(m.fetched_nothing(3, throttle_time_ms=5_000))
