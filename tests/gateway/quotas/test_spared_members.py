"""Shorter waits for members of groups: the bucket's counters, and the rate of members that pass."""

import pytest

from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.spared_members import MAX_LINES, let_in, line_of, shorten
from tests.gateway.quotas.engines import bucket_of

START = 1_000.0
ETL = ClientQuotaEntity(None, "etl")
ALICE, BOB = "user=alice", "user=bob"


def bucket_in_debt(entity=ETL):
    quota = EntityQuota(entity, {"request_rate": 1.0})
    bucket = bucket_of(QuotaEngine(QuotaSettings((quota,)), START), "request_rate", "alice", "etl", START)
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
    verdicts = [let_in(bucket, ALICE, (20.0, True), START) for _ in range(3)]
    assert verdicts == [(0.0, False), (pytest.approx(0.1), True), (pytest.approx(0.2), True)]
    assert let_in(bucket, ALICE, (20.0, True), START + 5.0) == (0.0, False)
    assert bucket.member_lines == {ALICE: START + 5.1}
    assert bucket.throttle_seconds_total == pytest.approx(20.0 - 20.0 - 19.9 - 19.8 - 20.0)


@pytest.mark.parametrize("verdict", [(20.0, False), (0.0, False)])
def test_unenforced_wait_needs_no_turn(verdict):
    bucket = bucket_in_debt()
    assert let_in(bucket, ALICE, verdict, START) == verdict
    assert bucket.member_lines == {}


def test_wait_below_the_turn_stays():
    bucket = bucket_in_debt()
    let_in(bucket, ALICE, (20.0, True), START)
    for wait in (0.0625, bucket.member_lines[ALICE] - START):
        assert let_in(bucket, ALICE, (wait, True), START) == (wait, True)
        assert bucket.member_lines == {ALICE: START + 0.1}
    assert let_in(bucket, ALICE, (0.1, True), START + 0.0005) == (pytest.approx(0.0995), True)


def waits(bucket, line, count, now=START):
    return [round(let_in(bucket, line, (1_000.0, True), now)[0], 6) for _ in range(count)]


def test_lines_share_the_members_that_pass():
    bucket = bucket_in_debt()
    assert waits(bucket, ALICE, 200)[-1] == 19.9
    assert waits(bucket, BOB, 3) == [0.0, 0.2, 0.4]
    assert waits(bucket, ALICE, 2) == [20.0, 20.2]
    assert waits(bucket, "user=carol", 2) == [0.0, 0.3]
    assert waits(bucket, ALICE, 2, START + 15.0) == [5.4, 5.5], "the others have passed"


def test_lines_of_a_bucket_are_bounded():
    bucket = bucket_in_debt()
    most = [waits(bucket, f"user={number}", 1_000) for number in range(3 * MAX_LINES)]
    assert len(bucket.member_lines) == MAX_LINES
    assert sum(wait <= 10.0 for each in most for wait in each) <= 10 * 10 * 3.4 + MAX_LINES


@pytest.mark.parametrize(
    ("entity", "lines"),
    [
        (ETL, [ALICE, BOB, "10.0.0.1"]),
        (ClientQuotaEntity("alice", None), ["etl", "other"]),
    ],
)
def test_lines_are_those_of_owners_or_of_client_ids(entity, lines):
    bucket = bucket_in_debt(entity)
    clients = [("alice", "etl", "10.0.0.1"), ("bob", "etl", "10.0.0.1"), ("ANONYMOUS", "etl", "10.0.0.1")]
    if entity.user is not None:
        clients = [("alice", "etl", "10.0.0.1"), ("alice", "other", "10.0.0.2")]
    assert [line_of(bucket, *client) for client in clients] == lines
