"""The line of a bucket's consumers: their order, their turns and their reservations."""

import pytest

from gateway.quotas.bucket import LEAST_DELAY
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.line import GENERATION_SECONDS, LONGEST_TURN_SECONDS, Consumer, Line
from gateway.quotas.meter import FETCH_SLICE_SECONDS
from gateway.quotas.shared_meter import SharedMeter
from gateway.quotas.token_bucket import TokenBucket
from tests.gateway.proxy.transcript import limits
from tests.gateway.quotas.consumers import consumer
from tests.gateway.quotas.engines import bucket_of

START = 1_000.0
LIMIT = 1_000.0
BURST = 10_000.0


def empty_bucket():
    meter = TokenBucket(LIMIT, BURST / LIMIT, START)
    meter.charge(BURST, START)
    return meter


class Waiting:
    """A line before an empty bucket. Consumers arrive, wait or are served."""

    def __init__(self, meter=None):
        self.meter = meter or empty_bucket()
        self.line = Line(START)
        self.now = START

    def comes(self, who, *, served=False):
        """Return the seconds that the consumer must wait, or 0.0 if it is served."""
        delay = self.line.wait(who, self.meter, self.now, served=served, alone=False)
        if delay >= LEAST_DELAY:
            self.line.join(who, self.meter, self.now + delay)
        else:
            self.line.serve(who, self.meter, self.now)
            self.meter.charge(who.expected, self.now)
        return pytest.approx(delay, abs=1e-9)


def test_turns_are_one_answer_apart():
    w = Waiting()
    w.meter.charge(50, START)
    assert [w.comes(consumer()) for _ in range(4)] == [0.05, 0.15, 0.25, 0.35]


def test_idle_consumers_are_a_millisecond_apart():
    w = Waiting()
    w.meter.charge(50, START)
    assert [w.comes(consumer(0)) for _ in range(3)] == [0.05, 0.051, 0.052]


def test_unknown_consumers_are_expected_to_get_as_much_as_others():
    w = Waiting()
    w.meter.charge(50, START)
    w.line.answered(consumer(400), w.meter, START)
    assert [w.comes(Consumer()), w.comes(Consumer())] == [0.05, 0.45]


def test_consumers_are_served_at_their_turn():
    w = Waiting()
    w.meter.charge(50, START)
    waiting = [consumer() for _ in range(5)]
    turns = [w.comes(each).expected for each in waiting]
    for turn, each in zip(turns, waiting, strict=True):
        w.now = START + turn
        assert w.comes(each) == 0.0
    assert w.line.length == 0.0


def test_larger_answer_delays_the_others_in_order():
    w = Waiting()
    w.meter.charge(50, START)
    waiting = [consumer() for _ in range(3)]
    turns = [w.comes(each).expected for each in waiting]
    w.meter.charge(500, START)
    again = []
    for turn, each in zip(turns, waiting, strict=True):
        w.now = START + turn
        again.append(w.now - START + w.comes(each).expected)
    assert again == pytest.approx([0.55, 0.65, 0.75])


def test_consumer_that_was_served_waits_for_all_others():
    w = Waiting(TokenBucket(LIMIT, BURST / LIMIT, START))
    w.meter.charge(5_000, START)
    w.line.join(consumer(1_000), w.meter, START)
    assert w.comes(consumer(), served=True).expected == pytest.approx(1_000 / (LIMIT + 5_000))


def test_saved_balance_makes_up_for_a_missed_turn():
    w = Waiting()
    w.meter.charge(50, START)
    late, other = consumer(), consumer()
    w.comes(late)
    turn = w.comes(other).expected
    w.now = START + turn
    assert w.comes(other) == 0.0
    assert w.comes(late) == 0.0


def test_abandoned_consumer_is_next():
    w = Waiting()
    w.meter.charge(50, START)
    late = consumer()
    w.comes(late)
    w.now = START + 3.0
    w.meter.charge(w.meter.tokens(w.now) + 50, w.now)
    others = [consumer() for _ in range(3)]
    assert [w.comes(each) for each in others] == [0.05, 0.15, 0.25], "no consumer waits for the late one"
    assert w.comes(late) == 0.05
    w.now += 0.05
    assert w.comes(others[0]) == 0.1
    assert w.comes(late) == 0.0


def test_full_bucket_makes_nobody_wait():
    w = Waiting()
    w.meter.charge(50, START)
    for _ in range(5):
        w.comes(consumer(10_000))
    w.now = START + 2 * BURST / LIMIT
    assert w.comes(consumer()) == 0.0


def test_long_waits_are_split_into_equal_parts():
    w = Waiting()
    w.meter.charge(50, START)
    w.line.join(consumer(20_000), w.meter, START)
    assert w.comes(consumer()).expected == pytest.approx(20.05 / 2)
    w.meter.charge(30_000, START)
    assert w.comes(consumer()).expected > LONGEST_TURN_SECONDS, "a debt gives its full delay"


def test_reservation_ends_after_about_a_second():
    line = Line(START)
    line.reserved(START + 0.4)
    line.reserve(700)
    generation = line.generation
    assert line.reserved(START + 0.4 + 0.9 * GENERATION_SECONDS) == 700
    assert line.reserved(START + 0.4 + 2 * GENERATION_SECONDS) == 0
    line.release(700, generation)
    assert line.promised == 0


@pytest.mark.parametrize("after", [0.0, 0.6])
def test_released_reservation_is_gone(after):
    line = Line(START)
    line.reserve(700)
    generation = line.generation
    assert line.reserved(START + after) == 700
    line.release(700, generation)
    assert line.reserved(START + after) == 0


def test_reservation_delays_others_by_a_second_at_most():
    w = Waiting(TokenBucket(LIMIT, BURST / LIMIT, START))
    w.line.reserve(10_000)
    for _ in range(8):
        assert 0.0 < w.comes(consumer(1_000)).expected <= 1.0


def test_window_delays_many_consumers_as_kafka_does():
    bucket = bucket_of(QuotaEngine(limits(fetch=LIMIT, algorithm="window"), START), "fetch", "ANONYMOUS", "etl", START)
    bucket.connections = 3
    assert bucket.fetch_allowance(0, START, first=True) == 10 * LIMIT
    bucket.charge(12_000, START)
    assert [bucket.admit_fetch(Consumer(), START) for _ in range(3)] == [(2.0, True)] * 3


def test_peer_gateways_use_their_share_of_the_line():
    w = Waiting(SharedMeter(empty_bucket(), LIMIT, share=0.25, horizon=0.6))
    assert w.meter.portion == 0.25 * 50
    w.line.join(consumer(100), w.meter, START)
    assert w.comes(consumer()) == 0.4


def test_idle_consumers_reserve_nothing():
    assert consumer(0).reservation(5_000, 2) == 0
    assert consumer(300).reservation(5_000, 2) == 300
    assert Consumer().reservation(5_000, 2) == 5_000
    assert Consumer().reservation(5_000, 1) == 2_500


def test_only_a_consumer_without_response_is_unknown():
    assert Consumer().unknown
    assert not consumer(1).unknown
    assert Consumer().batch_bytes == 0
    assert Consumer().reservation(5_001, 1) == 2_500, "half, in whole bytes"


def test_response_of_new_consumer_is_no_usual_size():
    bucket = bucket_of(QuotaEngine(limits(fetch=LIMIT), START), "fetch", "ANONYMOUS", "etl", START)
    assert bucket.charge_fetch(Consumer(), 400, START) == (0.0, False)


@pytest.mark.parametrize("limit", [10.0, 1_000.0])
def test_unknown_consumers_are_a_portion_apart_at_first(limit):
    w = Waiting(TokenBucket(limit, 10.0, START))
    w.meter.charge(limit * 10.05, START)
    assert [w.comes(Consumer()), w.comes(Consumer())] == [0.05, 0.1]


@pytest.mark.parametrize(("ahead", "delay"), [(14_950, 15.0), (15_450, 15.5 / 2), (30_450, 30.5 / 3)])
def test_waits_of_more_than_fifteen_seconds_are_split(ahead, delay):
    w = Waiting()
    w.meter.charge(50, START)
    w.line.join(consumer(ahead), w.meter, START)
    assert w.comes(consumer()) == delay


def test_late_consumer_counts_for_half_a_second():
    w = Waiting()
    w.line.join(consumer(100), w.meter, START)
    for seconds, delay in ((0.5, 0.15), (0.65, 0.05)):
        w.now = START + seconds
        w.meter.charge(w.meter.tokens(w.now) + 50, w.now)
        assert w.line.wait(consumer(), w.meter, w.now, served=False, alone=False) == pytest.approx(delay)


@pytest.mark.parametrize("seconds", [0.6, 1.5])
def test_consumer_counts_before_its_turn_is_missed(seconds):
    w = Waiting()
    w.line.join(consumer(100), w.meter, START + 1.0)
    w.now = START + seconds
    w.meter.charge(w.meter.tokens(w.now) + 50, w.now)
    assert w.comes(consumer()) == 0.15


def test_consumer_that_was_given_up_leaves_others_in_place():
    w = Waiting()
    late, other = consumer(), consumer(300)
    w.line.join(late, w.meter, START)
    w.now = START + 3.0
    w.meter.charge(w.meter.tokens(w.now) + 50, w.now)
    w.comes(other)
    w.line.leave(late)
    assert w.line.length == 300.0


def test_full_bucket_lets_a_consumer_pass_those_that_wait():
    w = Waiting(TokenBucket(LIMIT, BURST / LIMIT, START))
    w.line.join(consumer(50_000), w.meter, START + 60.0)
    assert w.comes(consumer()) == 0.0


def test_served_consumer_waits_for_an_idle_one_too():
    w = Waiting(TokenBucket(LIMIT, BURST / LIMIT, START))
    w.meter.charge(5_000, START)
    w.line.join(consumer(0), w.meter, START)
    assert w.line.wait(consumer(), w.meter, START, served=True, alone=False) == pytest.approx(1.0 / (LIMIT + 5_000))


def test_own_reservations_delay_no_lone_consumer():
    w = Waiting(TokenBucket(LIMIT, BURST / LIMIT, START))
    w.line.reserve(10_000)
    assert w.line.wait(consumer(1_000), w.meter, START, served=False, alone=True) == 0.0


@pytest.mark.parametrize(
    ("reserved", "more"), [(1, 0.051), (300, 0.35), (2_000, 0.5 * (1.0 + 1.55 / 2.55)), (9_000, 0.5 * (1.0 + 8.55 / 9.55))]
)
def test_reservations_of_others_delay_by_their_size(reserved, more):
    w = Waiting()
    w.meter.charge(50, START)
    w.line.reserve(reserved)
    assert w.comes(consumer()) == 0.05 + more


def test_reservation_lengthens_a_debt_that_is_not_split():
    w = Waiting()
    w.meter.charge(20_000, START)
    w.line.reserve(300)
    assert w.comes(consumer()) == 20.35


def test_reservations_add_up():
    line = Line(START)
    line.reserve(300)
    line.reserve(400)
    assert line.promised == 700


@pytest.mark.parametrize(
    ("looks", "left"),
    [
        ([0.7, 0.9], 700),
        ([0.5, 0.75], 700),
        ([0.5, 1.0], 0),
        ([0.7, 1.0], 0),
        ([1.0], 0),
        ([1.25], 0),
    ],
)
def test_generations_last_half_a_second(looks, left):
    line = Line(START)
    line.reserve(700)
    assert [line.reserved(START + look) for look in looks][-1] == left
    assert line.generation == (1 if left else 2)


def test_long_pause_begins_two_generations():
    line = Line(START)
    line.reserve(500)
    assert line.reserved(START + 10.0) == 0
    line.release(500, 0)
    line.reserve(700)
    assert line.reserved(START + 10.4) == 700


def test_dropped_bytes_are_paid_at_quota_rate():
    line, meter = Line(START), empty_bucket()
    line.drop(9_999, meter, START)
    assert line.may_drop(meter, START)
    line.drop(5_001, meter, START)
    assert not line.may_drop(meter, START + 5.0)
    assert line.may_drop(meter, START + 5.001)


def test_fewer_dropped_bytes_leave_no_credit():
    line, meter = Line(START), empty_bucket()
    line.drop(2_000, meter, START)
    line.drop(-2_000, meter, START + 1.0)
    line.drop(10_000, meter, START + 1.0)
    assert not line.may_drop(meter, START + 1.0)


def test_dropped_bytes_follow_a_new_limit():
    line, meter = Line(START), empty_bucket()
    line.drop(15_000, meter, START)
    meter.set_limit(2 * LIMIT, START)
    assert line.may_drop(meter, START)


def test_drop_budget_has_this_gateways_rate():
    line, meter = Line(START), SharedMeter(empty_bucket(), LIMIT, share=0.25)
    line.drop(11_000, meter, START)
    assert not line.may_drop(meter, START + 4.0)
    assert line.may_drop(meter, START + 4.01)


# Consumers that miss their turn.


def overtaken(*expected, behind):
    """A line with consumers that have missed their turns. One `behind` them was served, which left a debt of so many bytes."""
    w = Waiting()
    w.meter.charge(50, START)
    missing, last = [consumer(each) for each in expected], consumer(behind)
    for each in (*missing, last):
        w.comes(each)
    w.now = START + 0.05 + sum(expected) / LIMIT
    assert w.comes(last) == 0.0
    return w, missing


@pytest.mark.parametrize("expected", [1, 100, 2_000])
def test_overtaken_consumer_is_served_in_debt(expected):
    w, (missing,) = overtaken(expected, behind=expected + 1_000)
    w.now += 0.01
    assert w.meter.delay(w.now) > 0.9
    assert w.comes(missing) == 0.0
    assert w.line.length == 0.0


def test_consumer_at_its_turn_waits_for_a_debt():
    w = Waiting()
    w.meter.charge(50, START)
    first = consumer()
    w.comes(first)
    w.meter.charge(500, START)
    w.now = START + 0.05
    assert w.comes(first) == 0.5


def test_overtaken_consumers_get_the_quota_together():
    w, missing = overtaken(200, 200, 200, behind=10_000)
    served = []
    while missing:
        w.now += 0.01
        if w.comes(missing[0]).expected == 0.0:
            served.append(w.now - START)
            w.line.answered(missing.pop(0), w.meter, w.now)
    assert served == pytest.approx([0.66, 0.87, 1.08], abs=0.011)


def test_large_answer_delays_further_overtaken_consumers():
    w, (first, second) = overtaken(100, 100, behind=20_000)
    assert w.comes(first) == 0.0
    first.expected = 5_000
    w.line.answered(first, w.meter, w.now)
    w.line.answered(first, w.meter, w.now)  # its later answers are paid for before they begin
    w.now += 4.99
    assert w.comes(second).expected > 0.0
    w.now += 0.02
    assert w.comes(second) == 0.0


def test_small_overtaken_consumers_are_a_slice_of_time_apart():
    """Each may get a whole batch, and its size is known only a round trip later."""
    w, missing = overtaken(1, 1, 1, behind=10_000)
    w.now = START + 0.1
    assert w.comes(missing[0]) == 0.0
    w.now += FETCH_SLICE_SECONDS - 0.001
    assert w.comes(missing[1]).expected > 0.0
    w.now += 0.002
    assert w.comes(missing[1]) == 0.0
    assert w.comes(missing[2]).expected > 0.0
