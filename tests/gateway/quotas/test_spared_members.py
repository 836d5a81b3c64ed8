"""Shorter waits for members of groups: the bucket's counters, and the rate of members that pass."""

import pytest

from gateway.quotas.engine import QuotaEngine, QuotaSettings
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.spared_members import let_in, shorten

START = 1_000.0


def bucket_in_debt():
    quota = EntityQuota(ClientQuotaEntity(None, "etl"), {"request_rate": 1.0})
    bucket = QuotaEngine(QuotaSettings((quota,)), START).acquire("request_rate", "alice", "etl", START)
    bucket.charge(int(bucket.capacity()) + 20, START)
    assert (bucket.throttle_seconds_total, bucket.totals.seconds) == (20.0, 20.0)
    return bucket


def test_shortened_wait_corrects_the_counters():
    bucket = bucket_in_debt()
    shorten(bucket, 20.0, 5.0)
    assert (bucket.throttle_seconds_total, bucket.totals.seconds, bucket.throttled_total) == (5.0, 5.0, 1)
    assert bucket.throttle_left(START) == 20.0, "the debt stays"


def test_ten_members_a_second_pass_in_spite_of_a_debt():
    bucket = bucket_in_debt()
    verdicts = [let_in(bucket, (20.0, True), START) for _ in range(3)]
    assert verdicts == [(0.0, False), (pytest.approx(0.1), True), (pytest.approx(0.2), True)]
    assert let_in(bucket, (20.0, True), START + 5.0) == (0.0, False)
    assert bucket.member_turn == START + 5.1
    assert bucket.throttle_seconds_total == pytest.approx(20.0 - 20.0 - 19.9 - 19.8 - 20.0)


@pytest.mark.parametrize("verdict", [(20.0, False), (0.0, False)])
def test_unenforced_wait_needs_no_turn(verdict):
    bucket = bucket_in_debt()
    assert let_in(bucket, verdict, START) == verdict
    assert bucket.member_turn == START


def test_wait_below_the_turn_stays():
    bucket = bucket_in_debt()
    let_in(bucket, (20.0, True), START)
    for wait in (0.0625, bucket.member_turn - START):
        assert let_in(bucket, (wait, True), START) == (wait, True)
        assert bucket.member_turn == START + 0.1
    assert let_in(bucket, (0.1, True), START + 0.0005) == (pytest.approx(0.0995), True)
