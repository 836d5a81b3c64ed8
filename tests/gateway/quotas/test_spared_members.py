"""Shorter waits for members of groups: the rate of members that pass."""

from gateway.quotas.engine import QuotaEngine, QuotaSettings
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.spared_members import let_in

START = 1_000.0
TURN = START + 20.0


def bucket_in_debt():
    quota = EntityQuota(ClientQuotaEntity(None, "etl"), {"request_rate": 1.0})
    bucket = QuotaEngine(QuotaSettings((quota,)), START).acquire("request_rate", "alice", "etl", START)
    bucket.charge(int(bucket.capacity()) + 20, START)
    return bucket


def test_ten_members_a_second_pass_in_spite_of_a_debt():
    bucket = bucket_in_debt()
    assert [round(let_in(bucket, TURN, START) - START, 6) for _ in range(3)] == [0.0, 0.1, 0.2]
    assert let_in(bucket, TURN, START + 5.0) == START + 5.0
    assert bucket.member_turn == START + 5.1
    assert bucket.throttle_left(START) == 20.0, "the debt stays"


def test_earlier_turn_in_the_queue_stays():
    bucket = bucket_in_debt()
    let_in(bucket, TURN, START)
    for turn in (START + 0.0625, bucket.member_turn):
        assert let_in(bucket, turn, START) == turn
        assert bucket.member_turn == START + 0.1
    assert let_in(bucket, START + 0.2, START) == START + 0.1
