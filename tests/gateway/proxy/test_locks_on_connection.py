"""Share consumers over a quota: mutes end before the locks on their records do (KIP-932)."""

import pytest

from gateway.quotas.engine import QuotaEngine
from protocol.api_keys import ApiKey
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.test_members_on_connection import DEBT, in_debt
from tests.gateway.proxy.transcript import START, Transcript, limits
from tests.gateway.quotas.engines import bucket_of
from tests.protocol import codec

LOCK_SECONDS = 30


def share_fetch(number, *, version=1, **values):
    of_version = {"max_records": 500} if version >= 1 else {}
    return m.share_fetch(number, version=version, **{"epoch": 1, "max_bytes": 5_000} | of_version | values)


def share_fetched(number, throttle_time_ms=0, error=0, lock_ms=1_000 * LOCK_SECONDS, version=1):
    values = {"throttle_time_ms": throttle_time_ms, "error_code": error, "responses": []}
    if version >= 1:
        values |= {"acquisition_lock_timeout_ms": lock_ms}
    return codec.encode_response(ApiKey.SHARE_FETCH, version, values, number)


def acknowledge(number):
    values = {"group_id": "g", "member_id": "m", "share_session_epoch": 2, "topics": []}
    return codec.encode_request(ApiKey.SHARE_ACKNOWLEDGE, 1, values, number, "etl")


def throttle_ms(t):
    """The throttle time of the one answer that the client got."""
    answer, t.client_inbox = bytes(t.client_inbox), bytearray()
    return int.from_bytes(answer[9:13], "big")


def share_consumer(engine, lock_ms=1_000 * LOCK_SECONDS):
    """A connection that has got an answer to a ShareFetch, while its client had no debt."""
    t = Transcript(engine=engine)
    t.client_sends(share_fetch(0, epoch=0))
    t.broker_answers(share_fetched(0, lock_ms=lock_ms))
    t.broker_inbox.clear()
    t.client_inbox.clear()
    return t


def in_debt_without_locks():
    """A connection whose first request was answered, and then the client's bucket, which came into debt."""
    engine, bucket, amount = in_debt()
    t = Transcript(engine=engine)
    t.client_sends(m.metadata(0))
    t.broker_answers(m.described(0, []))
    t.client_inbox.clear()
    bucket.charge(amount, START)
    return t, bucket


@pytest.mark.parametrize(("lock_ms", "third"), [(30_000, 10.0), (15_000, 5.0), (60_000, 20.0)])
def test_acknowledgement_arrives_within_a_third_of_the_lock(lock_ms, third):
    engine, bucket, amount = in_debt()
    t = share_consumer(engine, lock_ms)
    bucket.charge(amount, START)
    t.client_sends(share_fetch(1), acknowledge(2))
    t.broker_answers(share_fetched(1, lock_ms=lock_ms))
    t.client_got(share_fetched(1, lock_ms=lock_ms, throttle_time_ms=round(1_000 * third)))
    t.broker_got(share_fetch(1))
    t.passes(third)
    t.broker_got(acknowledge(2))


def test_first_records_shorten_the_mute_that_they_find():
    t, bucket = in_debt_without_locks()
    t.client_sends(share_fetch(1, epoch=0))
    t.broker_answers(share_fetched(1))
    assert throttle_ms(t) == 10_000
    assert t.counters.member_mutes == 1
    assert bucket.throttle_left(t.now) == pytest.approx(DEBT + 2)


def test_mutes_are_short_once_the_lock_is_old():
    engine, bucket, amount = in_debt()
    t = share_consumer(engine)
    bucket.charge(amount, START)
    t.passes(11.0)
    t.client_sends(m.metadata(1))
    t.broker_answers(m.described(1, []))
    t.client_got(m.described(1, [], throttle_time_ms=1_000))


@pytest.mark.parametrize(("error", "version"), [(30, 1), (0, 0)], ids=["refused", "without a lock"])
def test_answer_without_a_lock_spares_nobody(error, version):
    t, _ = in_debt_without_locks()
    t.client_sends(share_fetch(1, epoch=0, version=version))
    t.broker_answers(share_fetched(1, error=error, version=version))
    assert throttle_ms(t) == pytest.approx(1_000 * (DEBT + 2))


def over_bytes():
    """A share consumer that has just got records. Another connection has made a debt of a minute."""
    engine = QuotaEngine(limits(fetch=1_000), START)
    t = share_consumer(engine)
    t.client_sends(share_fetch(1))
    bucket_of(engine, "fetch", "ANONYMOUS", "etl", START).charge(10_000 + 1_000 * 60, START)
    t.broker_answers(share_fetched(1))
    t.broker_inbox.clear()
    return t


def test_byte_rate_lets_acknowledgement_through_in_time():
    t = over_bytes()
    assert throttle_ms(t) == 10_000
    t.client_sends(acknowledge(2))
    t.passes(9.9)
    t.broker_got()
    t.passes(0.1)
    t.broker_got(acknowledge(2))


def test_share_consumer_in_debt_gets_no_records():
    t = over_bytes()
    t.passes(10.0)
    while t.now < START + 59:
        t.client_sends(share_fetch(2))
        t.broker_got(share_fetch(2, max_records=0, max_bytes=1))
        t.client_inbox.clear()
        t.broker_answers(share_fetched(2))
        assert throttle_ms(t) <= 1_000
        t.passes(1.0)
    t.passes(5.0)
    t.client_sends(share_fetch(3))
    request = codec.request_class(ApiKey.SHARE_FETCH).decode(bytes(t.broker_inbox), version=1, header=True, framed=True)
    assert request.max_records == 500


def test_share_consumers_fetch_mutes_for_its_whole_time():
    t = over_bytes()
    t.passes(10.0)
    t.client_inbox.clear()
    t.client_sends(m.fetch(2, session=(0, -1)))
    assert throttle_ms(t) > 45_000
