"""A meter that peers use as well: presumed use, its return, and the bounds of peers' debt."""

import pytest

from gateway.quotas.meter import Window
from gateway.quotas.rate import WindowMeter
from gateway.quotas.shared_meter import LONGEST_PEER_TURN_SECONDS, ROLLOUT_SECONDS, TURN_PART, SharedMeter
from gateway.quotas.spread_rate import SpreadRate
from gateway.quotas.token_bucket import MAX_DEBT_SECONDS, TokenBucket

LIMIT = 100.0


def meter(share: float = 1.0, horizon: float = 0.6, now: float = 0.0) -> SharedMeter:
    return SharedMeter(TokenBucket.for_bytes(LIMIT, Window(), now), LIMIT, share, horizon)


def test_single_member_equals_the_plain_meter() -> None:
    shared, plain = meter(), TokenBucket.for_bytes(LIMIT, Window(), 0.0)
    for now, amount in ((0.0, 900), (0.5, 300), (1.0, 10), (9.0, -5)):
        assert shared.charge(amount, now) == plain.charge(amount, now)
        assert shared.tokens(now) == plain.tokens(now)


def test_own_use_counts_once_per_member() -> None:
    shared = meter(share=0.25)
    shared.charge(100, 0.0)
    assert shared.tokens(0.0) == 600.0
    assert shared.presumed == 300.0


def test_presumption_throttles_up_to_the_horizon() -> None:
    assert meter(share=0.2).charge(300, 0.0) == pytest.approx(0.6)
    assert meter(share=0.2).charge(1_100, 0.0) == pytest.approx(1.0), "its own debt is waited for in full"


def test_presumed_use_is_returned_after_next_interval() -> None:
    shared = meter(share=0.5)
    shared.charge(100, 0.0)
    shared.settle(0.5, 0.6, 0.0)
    assert shared.tokens(0.0) == 800.0
    shared.charge_others(60, 0.0)
    shared.settle(0.5, 0.6, 0.0)
    assert (shared.tokens(0.0), shared.presumed) == (840.0, 0.0)


def test_confirmed_presumption_is_not_returned() -> None:
    shared = meter(share=0.25, horizon=1e9)
    shared.charge(100, 0.0)
    for _ in range(3):
        shared.settle(0.25, 1e9, 0.0, confirm=True)
    assert shared.tokens(0.0) == 600.0


def test_held_presumption_is_returned_with_the_truth() -> None:
    shared = meter(share=0.5)
    for _ in range(3):
        shared.charge(100, 0.0)
        shared.settle(0.5, 0.6, 0.0, hold=True)
    assert (shared.tokens(0.0), shared.presumed) == (400.0, 300.0)
    shared.settle(0.5, 0.6, 0.0)
    assert (shared.tokens(0.0), shared.presumed) == (700.0, 0.0)


@pytest.mark.parametrize(("no_debt", "left"), [(False, -LIMIT * MAX_DEBT_SECONDS), (True, 0.0)])
def test_debt_by_peers_is_bounded(no_debt: bool, left: float) -> None:
    shared = meter()
    shared.charge_others(1_000_000, 0.0, no_debt=no_debt)
    assert shared.tokens(0.0) == left
    shared.charge_others(5, 0.0, no_debt=no_debt)
    assert shared.tokens(0.0) == left


def test_debt_by_peers_above_the_burst_is_kept() -> None:
    shared = meter()
    shared.charge_others(20_000, 0.0)
    assert shared.tokens(0.0) == -19_000.0


@pytest.mark.parametrize(
    ("seconds", "left"), [(0.0, -1_000.0), (ROLLOUT_SECONDS - 0.1, -1_000.0), (ROLLOUT_SECONDS, -19_000.0)]
)
def test_debt_by_peers_is_short_while_a_new_limit_rolls_out(seconds: float, left: float) -> None:
    """Peers with the old limit use more than the new one pays for, and rightly."""
    shared = meter()
    shared.set_limit(10 * LIMIT, 0.0)
    shared.set_limit(LIMIT, 0.0)
    shared.charge_others(20_000, seconds)
    assert shared.tokens(seconds) == left


def test_limit_that_stays_rolls_nothing_out() -> None:
    shared = meter()
    shared.set_limit(LIMIT, 0.0)
    shared.charge_others(20_000, 0.0)
    assert shared.tokens(0.0) == -19_000.0


def test_peer_charge_does_not_forgive_own_debt() -> None:
    shared = meter()
    shared.charge(5_000, 0.0)
    shared.charge_others(10, 0.0)
    assert shared.tokens(0.0) == -4_010.0


def test_fetch_allowance_is_the_share() -> None:
    assert meter(share=0.25).fetch_allowance(0.0) == 250.0


@pytest.mark.parametrize("inner", [WindowMeter(LIMIT, Window()), SpreadRate(LIMIT, Window(), 0.0)])
def test_windows_are_shared(inner: WindowMeter | SpreadRate) -> None:
    shared = SharedMeter(inner, LIMIT)
    shared.charge_others(1_000, 10.0)
    assert shared.charge(200, 10.0) > 0.0


def test_presumption_in_a_window_is_bounded() -> None:
    shared = SharedMeter(WindowMeter(LIMIT, Window()), LIMIT, 0.001, 0.6)
    for _ in range(100):
        shared.charge(1, 0.0)
    assert shared.presumed <= 1_060.0
    assert shared.balance(0.0) >= -0.6 * LIMIT - 100.0


def test_free_room_of_a_window_is_presumed_to_be_used() -> None:
    shared = SharedMeter(WindowMeter(LIMIT, Window()), LIMIT, 0.25, 0.6)
    shared.charge(100, 0.0)
    assert (shared.presumed, shared.balance(0.0)) == (300.0, 600.0)


def test_zero_share_is_refused() -> None:
    with pytest.raises(ValueError, match="share 0"):
        meter().settle(0.0, 0.6, 0.0)


def test_meter_with_presumption_is_not_idle() -> None:
    shared = meter(share=0.5)
    shared.charge(1, 0.0)
    assert not shared.idle(1.0)
    shared.settle(0.5, 0.6, 1.0)
    shared.settle(0.5, 0.6, 1.0)
    assert shared.idle(1.0)


def crowd_meter(turn: float, members: int = 100, users: int = 1_000) -> SharedMeter:
    shared = SharedMeter(TokenBucket.for_bytes(LIMIT, Window(), 0.0), LIMIT, 1.0 / members, 0.6, turn)
    shared.settle(1.0 / members, 0.6, 0.0, users=users)
    return shared


def test_gateways_come_back_one_after_the_other() -> None:
    """Each of 100 gateways sends one request of 11 units, which the quota pays for in 11 s."""
    delays = sorted(crowd_meter(number / 100).charge(11, 0.0) for number in range(100))
    debt = crowd_meter(0.0)
    debt.charge(11, 0.0)
    first = -debt.balance(0.0) / LIMIT
    turns = [delay - first for delay in delays]
    assert turns == pytest.approx([number / 100 * 10.89 for number in range(100)], abs=0.11)


def test_next_turn_of_a_gateway_is_another_one() -> None:
    shared = crowd_meter(0.0)
    debts, delays = [], []
    for _ in range(8):
        delays.append(shared.charge(10.0, 0.0))
        debts.append(-shared.balance(0.0) / LIMIT)
    turns = {round(delay - debt, 3) for delay, debt in zip(delays[1:], debts[1:], strict=True)}
    assert len(turns) == 7
    assert all(0.0 <= turn < 9.9 for turn in turns)


def test_turn_is_told_until_the_debt_is_paid() -> None:
    shared = crowd_meter(0.3)
    told = shared.charge(11, 0.0)
    paid = -shared.balance(0.0) / LIMIT
    assert shared.delay(paid - 0.1) == pytest.approx(told - paid + 0.1)
    assert shared.delay(paid + 0.1) == 0.0


@pytest.mark.parametrize(("members", "users"), [(8, 7), (100, 7)])
def test_few_gateways_wait_for_no_turn(members: int, users: int) -> None:
    shared = crowd_meter(0.3, members, users)
    assert shared.charge(140, 0.0) == pytest.approx(-shared.balance(0.0) / LIMIT)


@pytest.mark.parametrize("settles", [0, 1])
def test_turn_is_within_two_horizons_without_known_peers(settles: int) -> None:
    shared = SharedMeter(TokenBucket.for_bytes(LIMIT, Window(), 0.0), LIMIT, 0.001, 0.6, 0.3)
    for _ in range(settles):
        shared.settle(0.001, 0.6, 0.0)
    assert 0.0 < shared.charge(1_000_000, 0.0) + shared.balance(0.0) / LIMIT <= 1.2


def test_turn_is_within_one_request_of_each_user() -> None:
    shared = crowd_meter(0.3, members=100, users=10)
    assert shared.charge(140, 0.0) + shared.balance(0.0) / LIMIT < 10 * 140 / LIMIT * 0.95


def test_longest_turn_is_bounded() -> None:
    shared = crowd_meter(0.3, members=1_000)
    assert 0.0 < shared.charge(1_000_000, 0.0) + shared.balance(0.0) / LIMIT <= LONGEST_PEER_TURN_SECONDS


@pytest.mark.parametrize("settles", [0, 1])
def test_turn_of_an_exact_meter_is_within_its_burst(settles: int) -> None:
    shared = SharedMeter(TokenBucket(LIMIT, 0.2, 0.0), LIMIT, 0.05, 0.6, 0.3, exact=True)
    for _ in range(settles):
        shared.settle(0.05, 0.6, 0.0, users=19)
    assert 0.0 < shared.charge(100, 0.0) + shared.balance(0.0) / LIMIT <= 0.2 * TURN_PART


def test_forgiven_client_waits_for_no_turn() -> None:
    shared = crowd_meter(0.3)
    shared.charge(11, 0.0)
    shared.forgive(0.0)
    shared.charge_others(1_000, 0.0)
    assert shared.delay(0.0) == pytest.approx(max(-shared.balance(0.0), 0.0) / LIMIT)


def exact_meter() -> SharedMeter:
    return SharedMeter(TokenBucket(LIMIT, 1.0, 0.0), LIMIT, 0.5, 0.6, exact=True)


def test_reported_use_replaces_presumed_use_in_an_exact_meter() -> None:
    shared = exact_meter()
    shared.charge(40, 0.0)
    shared.charge_others(30, 0.0)
    assert (shared.tokens(0.0), shared.presumed) == (20.0, 10.0)
    shared.charge_others(30, 0.0)
    assert (shared.tokens(0.0), shared.presumed) == (0.0, 0.0)
    shared.settle(0.5, 0.6, 0.0)
    shared.settle(0.5, 0.6, 0.0)
    assert shared.tokens(0.0) == 0.0


def test_brief_meter_without_presumed_use_is_full_at_most() -> None:
    """The presumed 10 units kept the small bucket from being full. Its peers lose the same inflow."""
    shared = SharedMeter(TokenBucket(LIMIT, 0.5, 0.0), LIMIT, 0.5, 0.6, exact=True)
    shared.charge(10, 0.0)
    shared.settle(0.5, 0.6, 1.0)
    assert (shared.tokens(1.0), shared.presumed) == (40.0, 10.0)
    shared.settle(0.5, 0.6, 1.0)
    assert (shared.tokens(1.0), shared.presumed) == (50.0, 0.0)


def test_oldest_presumption_is_replaced_first() -> None:
    shared = exact_meter()
    shared.charge(20, 0.0)
    shared.settle(0.5, 0.6, 0.0)
    shared.charge(10, 0.0)
    shared.charge_others(20, 0.0)
    shared.settle(0.5, 0.6, 0.0)
    assert (shared.tokens(0.0), shared.presumed) == (40.0, 10.0)


def test_old_use_of_a_peer_replaces_no_presumption() -> None:
    shared = exact_meter()
    shared.charge(20, 0.0)
    shared.charge_others(30, 0.0, no_debt=True)
    assert (shared.tokens(0.0), shared.presumed) == (30.0, 20.0)


def test_gateway_has_its_part_of_the_balance() -> None:
    shared = meter(share=0.25)
    assert (shared.saved(0.0), shared.portion, shared.capacity) == (250.0, 1.25, 1_000.0)
    shared.set_limit(200.0, 0.0)
    assert (shared.capacity, shared.charge(1_300, 0.0)) == (2_000.0, 1.5)


@pytest.mark.parametrize(("share", "delay"), [(1.0, 1.0), (0.8, 1.25), (0.5, 1.5), (0.25, 1.5)])
def test_peers_promise_in_proportion_within_the_horizon(share, delay) -> None:
    shared = meter(share=share, horizon=0.5)
    shared.charge_others(1_000, 0.0)
    assert shared.delay(0.0, 100.0) == pytest.approx(delay)


def test_returned_use_presumes_nothing() -> None:
    shared = meter(share=0.5)
    shared.charge(100, 0.0)
    shared.charge(-50, 0.0)
    assert (shared.presumed, shared.tokens(0.0)) == (100.0, 850.0)


@pytest.mark.parametrize("inner", [TokenBucket.for_bytes(1.0, Window(), 0.0), WindowMeter(1.0, Window())])
def test_first_use_of_a_small_quota_is_admitted(inner) -> None:
    shared = SharedMeter(inner, 1.0, 1 / 12, 0.6)
    assert shared.admit(1, 0.0, 0.0) == 0.0
    assert shared.presumed == pytest.approx(9.6)
    assert shared.admit(1, 0.0, 0.1) > 0.0, "peers may have used the rest"
    shared.take_back(1, 0.1)
    assert shared.presumed == pytest.approx(9.6), "the refused use presumed nothing"
    for now in (0.2, 0.4):
        shared.settle(1 / 12, 0.6, now)
    assert shared.balance(0.4) == pytest.approx(9.0 if shared.takes_back else 9.4, abs=0.5)
    assert shared.admit(1, 0.0, 0.4) == 0.0


def test_patient_use_waits_no_longer_than_its_patience() -> None:
    shared = SharedMeter(TokenBucket.for_bytes(1.0, Window(), 0.0), 1.0, 1 / 50, 0.6, 0.5)
    shared.settle(1 / 50, 0.6, 0.0, users=49)
    delays = [shared.admit(1, 10.0, 0.0) for _ in range(10)]
    assert delays[0] > 0.6, "a turn"
    assert max(delays) <= 10.0
    assert max(shared.admit(1, 10.0, 0.0) for _ in range(2)) > 10.0, "its own debt is more"


def test_taken_back_use_presumes_nothing() -> None:
    shared = meter(share=0.25)
    shared.charge(100, 0.0)
    shared.charge(200, 0.0)
    shared.take_back(200, 0.0)
    assert (shared.presumed, shared.tokens(0.0)) == (300.0, 600.0)
    shared.take_back(100, 0.0)
    assert (shared.presumed, shared.tokens(0.0)) == (300.0, 700.0), "only the last charge is known"


def test_presumed_use_leaves_a_window_with_its_sample() -> None:
    shared, plain = SharedMeter(WindowMeter(LIMIT, Window()), LIMIT, 0.5, 0.6), WindowMeter(LIMIT, Window())
    for now, amount in ((0.0, 1), (0.9, 100), (1.1, 5)):
        shared.charge(amount, now)
        plain.charge(amount, now)
        shared.settle(0.5, 0.6, now)
    shared.settle(0.5, 0.6, 1.2)
    assert [shared.balance(now) for now in (1.2, 11.5, 12.0)] == [plain.balance(now) for now in (1.2, 11.5, 12.0)]


def test_late_return_gives_a_window_no_credit() -> None:
    shared = SharedMeter(WindowMeter(LIMIT, Window()), LIMIT, 0.5, 0.6)
    shared.charge(400, 0.0)
    shared.settle(0.5, 0.6, 0.1)
    shared.charge(10, 20.0)
    shared.settle(0.5, 0.6, 20.1)
    shared.settle(0.5, 0.6, 20.2)
    plain = WindowMeter(LIMIT, Window())
    plain.charge(10, 20.0)
    assert shared.balance(20.2) <= plain.balance(20.2) + 0.2 * LIMIT, "of the older sample, only its time counts"


def test_dump_is_without_presumed_use() -> None:
    shared = SharedMeter(SpreadRate(100.0, Window(3, 1.0), 0.0), 100.0, 0.25, 1e9)
    shared.charge(100, 0.0)
    assert shared.presumed == 300.0
    dumped = [each.amount for each in shared.dump(0.0)]
    assert (len(dumped), sum(dumped)) == (4, 100.0)
    assert dumped[0] == 100.0, "the newest were charged last"


def test_comparable_balance_is_without_presumed_use() -> None:
    shared = meter(share=0.5)
    shared.charge(300, 0.0)
    assert (shared.tokens(0.0), shared.comparable(0.0)) == (400.0, 700.0)


def test_balance_is_not_compared_after_a_cleared_debt() -> None:
    """Another gateway may clear it later."""
    shared = meter()
    shared.charge(1_500, 0.0)
    shared.forgive(0.0)
    before = shared.tokens(1.0)
    shared.lower(LIMIT, 1.0)
    assert (shared.comparable(1.0), shared.tokens(1.0)) == (None, before)
    assert shared.comparable(ROLLOUT_SECONDS) is not None


def test_short_burst_is_not_compared() -> None:
    """The use of peers is heard later than it fits into the burst."""
    assert SharedMeter(TokenBucket(LIMIT, 0.5, 0.0), LIMIT, 0.5, 0.6).comparable(0.0) is None
    assert SharedMeter(WindowMeter(LIMIT, Window()), LIMIT, 0.5, 0.6).comparable(0.0) is None


def test_lowered_balance_keeps_presumed_use() -> None:
    shared = meter(share=0.5)
    shared.charge(300, 0.0)
    shared.lower(60.0, 0.0)
    assert shared.comparable(0.0) == pytest.approx(640.0)
    shared.lower(-50.0, 0.0)
    assert (shared.comparable(0.0), shared.presumed) == (pytest.approx(690.0), 300.0)
