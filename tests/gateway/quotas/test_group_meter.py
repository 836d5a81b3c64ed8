"""The bucket of a group beside the tokens that its parent has to spare. Rates are per second, and the parent has 1000."""

import pytest

from gateway.quotas.group_meter import EntitledBucket, GroupMeter

START = 5_000.0
INTERVAL = 0.2
WHOLE = 1_000.0


def meter(rate: float, parent: GroupMeter | None = None, ceiling: float = WHOLE, burst: float = 1.0) -> GroupMeter:
    bucket = EntitledBucket(rate, rate, burst, 1.0, START)
    found = GroupMeter(bucket, bucket, rate, parent)
    found.set_rates(rate, rate, ceiling, INTERVAL, START)
    return found


def family(ceiling: float = WHOLE) -> tuple[GroupMeter, GroupMeter]:
    """A parent with a burst of 200 units, and a group with 250 of its 1000 units per second and an empty bucket."""
    parent = meter(WHOLE, burst=INTERVAL)
    group = meter(250.0, parent, ceiling)
    group.own.charge(250.0, START)
    return parent, group


def test_group_uses_spare_tokens_of_its_parent_at_once() -> None:
    parent, group = family()
    assert group.charge(100.0, START) == 0.0
    assert group.topped_up
    assert (group.tokens(START), parent.tokens(START)) == (0.0, 100.0)


def test_group_waits_when_no_token_is_spare() -> None:
    _, group = family()
    assert group.charge(190.0, START) == pytest.approx(190 / 250)
    assert not group.topped_up


def test_own_ceiling_holds_beside_spare_tokens() -> None:
    _, group = family(ceiling=350.0)
    now = START + 0.1
    assert group.charge(45.0, now) == pytest.approx(10 / 250)  # 25 at its own rate, and 10 more at its ceiling
    assert group.charge(20.0, now) == pytest.approx(30 / 250)
    assert group.charge(20.0, START + 100.0) == 0.0


def test_group_at_its_ceiling_gets_no_spare_tokens() -> None:
    parent = meter(WHOLE, burst=INTERVAL)
    group = meter(250.0, parent, ceiling=250.0)
    assert group.charge(300.0, START) == pytest.approx(50 / 250)


def test_tokens_of_a_group_that_lends_are_not_spare() -> None:
    root = meter(WHOLE, burst=INTERVAL)
    middle = meter(800.0, root, burst=INTERVAL)
    group = meter(250.0, middle)
    middle.set_rates(500.0, 800.0, WHOLE, INTERVAL, START)
    root.own.charge(190.0, START)
    assert (middle.limit, middle.spare(START)) == (800.0, False)
    assert group.charge(255.0, START) > 0.0
    assert not middle.spare(START + INTERVAL)
    assert middle.spare(START + 2 * INTERVAL), "the root has spare tokens again"
    middle.set_rates(800.0, 800.0, WHOLE, INTERVAL, START)
    assert middle.spare(START + INTERVAL)


def test_use_is_taken_back_from_the_parent_as_well() -> None:
    parent = meter(WHOLE, burst=INTERVAL)
    group = meter(250.0, parent)
    group.charge(100.0, START)
    assert (group.tokens(START), parent.tokens(START), parent.used) == (150.0, 100.0, 100.0)
    group.take_back(100.0, START)
    assert (group.tokens(START), parent.tokens(START), parent.used) == (250.0, 200.0, 0.0)


def test_new_entitlement_counts_from_its_change_on() -> None:
    bucket = EntitledBucket(WHOLE, 100.0, 1.0, 1.0, START)
    bucket.entitle(100.0, INTERVAL, START)
    bucket.charge(60.0, START)  # 10 were free
    assert bucket.seconds_to_pay(START) == pytest.approx(0.5)
    bucket.entitle(200.0, INTERVAL, START + 0.2)
    assert bucket.seconds_to_pay(START + 0.2) == pytest.approx(30.0 / 200.0)
    assert bucket.seconds_to_pay(START + 0.3) == pytest.approx(10.0 / 200.0)


@pytest.mark.parametrize(("limit", "left"), [(100.0, 0.0), (WHOLE, 0.4)], ids=["entitled", "borrows"])
def test_debts_of_two_gateways_become_equal(limit: float, left: float) -> None:
    """Both charge the same use. A group that borrows keeps its debt, which its parent's bucket pays."""
    buckets = [EntitledBucket(limit, 100.0, 1.0, 1.0, START) for _ in range(2)]
    for bucket, debt in zip(buckets, (50.0, 90.0), strict=True):
        bucket.entitle(100.0, INTERVAL, START)
        bucket.charge(debt, START)
    now = START
    for number in range(300):
        now = START + 0.2 * (number + 1)
        for bucket in buckets:
            bucket.charge(20.0, now)
    first, second = (bucket.seconds_to_pay(now) for bucket in buckets)
    assert second - first == pytest.approx(left, abs=0.01)


def test_lost_inflow_pays_for_late_use() -> None:
    """The burst is 200 units. At the peer, the bucket was not full when it took in these 400."""
    bucket = EntitledBucket(WHOLE, 100.0, INTERVAL, 1.0, START)
    bucket.charge_late(250.0, 2 * INTERVAL, START + 10.0)
    assert bucket.tokens(START + 10.0) == pytest.approx(200.0)
    bucket.charge_late(250.0, 2 * INTERVAL, START + 10.0)
    assert bucket.tokens(START + 10.0) == pytest.approx(100.0)


@pytest.mark.parametrize(("pause", "left"), [(0.1, 0.0), (0.3, -200.0), (1.0, -300.0)])
def test_lost_inflow_pays_for_use_of_its_time_only(pause: float, left: float) -> None:
    """The bucket is full until clients of this gateway use more than the inflow."""
    bucket = EntitledBucket(WHOLE, 100.0, INTERVAL, 1.0, START)
    now = START + 10.0
    bucket.charge(200.0 + WHOLE * pause, now)
    bucket.charge_late(300.0, 2 * INTERVAL, now + pause)
    assert bucket.tokens(now + pause) == pytest.approx(left)


def test_used_inflow_pays_for_no_late_use() -> None:
    bucket = EntitledBucket(WHOLE, 100.0, INTERVAL, 1.0, START)
    now = START + 10.0
    bucket.charge_late(400.0, 2 * INTERVAL, now)
    bucket.charge(100.0, now)
    bucket.charge(50.0, now + 0.2)  # 100 are lost
    bucket.charge_late(130.0, 2 * INTERVAL, now + 0.2)
    assert bucket.tokens(now + 0.2) == pytest.approx(120.0)


def test_presumed_use_that_comes_back_is_free_again() -> None:
    bucket = EntitledBucket(WHOLE, 100.0, 1.0, 1.0, START)
    bucket.entitle(100.0, INTERVAL, START)
    bucket.charge(60.0, START)  # 10 were free
    bucket.charge(-55.0, START)
    assert bucket.seconds_to_pay(START) == 0.0
    assert bucket.seconds_to_pay(START, further=6.0) == pytest.approx(0.01)
    bucket.charge(-55.0, START)
    assert bucket.seconds_to_pay(START, further=11.0) == pytest.approx(0.01), "no more than at the start"


def test_presumed_use_beyond_the_longest_debt_stays_gone() -> None:
    """A group that borrows owes its entitlement 100 units at most, whatever it presumes."""
    bucket = EntitledBucket(WHOLE, 100.0, 1.0, 1.0, START)
    bucket.entitle(100.0, INTERVAL, START)
    bucket.charge(110.0, START)  # 10 were free
    bucket.charge(100.0, START)  # forgotten
    bucket.charge(-80.0, START)
    assert bucket.seconds_to_pay(START) == pytest.approx(1.0)
    bucket.charge(-30.0, START)
    assert bucket.seconds_to_pay(START) == pytest.approx(0.9)


def test_debt_that_the_parent_has_paid_stays_gone() -> None:
    bucket = EntitledBucket(WHOLE, 100.0, 1.0, 1.0, START)
    bucket.entitle(100.0, INTERVAL, START)
    bucket.charge(60.0, START)
    bucket.bound_debt()  # 10 of 50 units are left
    bucket.charge(-30.0, START)
    assert bucket.seconds_to_pay(START) == pytest.approx(0.1)
    bucket.charge(1.0, START + 0.2)  # nothing is owed any more
    bucket.charge(-1.0, START + 0.2)
    assert bucket.seconds_to_pay(START + 0.2, further=11.0) == pytest.approx(0.01)


def test_forgiven_group_owes_its_entitlement_nothing() -> None:
    bucket = EntitledBucket(WHOLE, 100.0, 1.0, 1.0, START)
    bucket.entitle(100.0, INTERVAL, START)
    bucket.charge(60.0, START)
    bucket.forgive(START)
    assert bucket.seconds_to_pay(START) == 0.0
    assert bucket.seconds_to_pay(START, further=1.0) == pytest.approx(0.01)


def test_rate_of_a_group_is_that_of_its_own_bucket() -> None:
    _, group = family()
    group.charge(100.0, START + 1.0)
    assert group.rate(START + 2.0) == group.own.rate(START + 2.0)
