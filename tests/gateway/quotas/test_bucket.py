"""One bucket: its decisions, its counters, and the figures of its row."""

from math import inf

import pytest

from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota, Resolution, Source, Tags
from gateway.quotas.kinds import KINDS
from gateway.quotas.line import LONGEST_TURN_SECONDS, Consumer
from gateway.quotas.meter import Window
from gateway.quotas.policy import KindTotals, Policy
from gateway.quotas.rate import WindowMeter
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.shared_meter import SharedMeter
from gateway.quotas.token_bucket import TokenBucket
from gateway.quotas.usage_rows import usage_row
from tests.gateway.quotas.consumers import consumer
from tests.gateway.quotas.engines import bucket_of

START = 1_000.0
LIMIT = 1_000.0
BURST = 10_000
SHORT = Window(3, 1.0)


def token_bucket():
    return TokenBucket(LIMIT, BURST / LIMIT, START)


def bucket(kind="fetch", *, meter=None, enforce=True, window=SHORT, limit=LIMIT, unlimited=False):
    resolution = Resolution(Tags(None, "etl"), None if unlimited else limit, ClientQuotaEntity(None, "etl"), source=Source.FILE)
    found = None if unlimited else meter or token_bucket()
    return Bucket(KINDS[kind], resolution, found, Policy(enforce, window, START), KindTotals(), START)


def test_new_bucket_has_used_nothing():
    row = usage_row(bucket(), START)
    assert (row.rate, row.used_ratio, row.tokens, row.connections) == (0.0, 0.0, BURST, 0)
    counters = (row.amount_total, row.throttled_total, row.unenforced_total, row.throttle_seconds_total, row.early_total)
    assert (*counters, row.early_seconds_total, row.early_seconds_max) == (0, 0, 0, 0.0, 0, 0.0, 0.0)
    new = bucket()
    assert (new.shared_total, new.answered_total, new.latency_seconds_total, new.active_seconds) == (0, 0, 0.0, 0)
    assert (new.labelled, new.first_requests.waiting, new.last_used, new.member_lines) == (False, 0, START, {})
    assert new.others_total == 0


def test_costs_are_those_of_the_kind():
    assert (bucket("produce").per_message, bucket("produce").per_byte) == (0, 1)
    assert (bucket("request_rate").per_message, bucket("request_rate").per_byte) == (1, 0)
    assert (bucket("connection").per_message, bucket("connection").per_byte) == (0, 0)


def test_charge_over_the_quota_is_counted():
    b = bucket()
    assert b.charge(10_000, START) == (0.0, False)
    assert b.charge(500, START) == (0.5, True)
    assert b.charge(500, START) == (1.0, True)
    row = usage_row(b, START)
    assert (row.amount_total, row.throttled_total, row.unenforced_total, row.throttle_seconds_total) == (11_000, 2, 0, 1.5)
    assert (b.totals.seconds, sum(b.totals.counts), b.over_at) == (1.5, 2, START)


def test_debt_below_half_a_millisecond_throttles_nobody():
    b = bucket(meter=TokenBucket(4_000.0, BURST / 4_000.0, START))
    assert b.charge(BURST + 1, START) == (0.0, False)
    assert b.charge(1, START) == (0.0005, True)


def test_unenforced_bucket_keeps_no_debt():
    b = bucket(enforce=False)
    assert b.charge(10_500, START) == (0.5, False)
    assert b.charge(700, START) == (0.7, False)
    row = usage_row(b, START)
    assert (row.throttled_total, row.unenforced_total, row.throttle_left, row.tokens) == (2, 2, 0.0, 0.0)
    assert b.throttle_left(START) == 0.0


@pytest.mark.parametrize(
    ("own", "others", "counted"),
    [(12_000, 0, 2.0), (6_000, 6_000, 1.0), (3_000, 9_000, 0.5), (12, 14_988, 0.004)],
)
def test_unenforced_bucket_counts_its_part_of_a_debt(own, others, counted):
    b = bucket(meter=SharedMeter(token_bucket(), LIMIT), enforce=False)
    b.charge(1, START)
    b.charge_others(others, START, no_debt=False)
    assert b.charge(own - 1, START) == (pytest.approx(counted), False)
    assert (b.throttle_seconds_total, b.totals.seconds) == (pytest.approx(counted), pytest.approx(counted))
    assert b.meter.delay(START) == 0.0


@pytest.mark.parametrize(("enforce", "debt"), [(False, 0.0), (True, 90.0)])
def test_unenforced_debt_of_peers_alone_is_forgiven(enforce, debt):
    b = bucket(meter=SharedMeter(token_bucket(), LIMIT), enforce=enforce)
    b.charge_others(100_000, START, no_debt=False)
    assert b.meter.delay(START) == debt


def test_unlimited_bucket_only_counts():
    b = bucket(unlimited=True)
    assert b.charge(10**9, START) == (0.0, False)
    b.record(10, START)
    assert b.enter_queue(10, inf, START) == (0.0, False, inf)
    assert b.admit(START) == b.admit_fetch(Consumer(), START) == (0.0, False)
    assert b.charge_fetch(Consumer(), 10, START) == (0.0, False)
    assert b.charge_connection(30.0, START) == (0.0, False)
    assert b.amount_total == 10**9 + 21
    assert not b.takes_back
    assert not b.exhausted_by(10, START)
    assert b.fetch_allowance(0, START) is None
    assert b.reserve_fetch(consumer(300), 5_000, START) == 300
    assert (b.throttle_left(START), b.capacity(), b.used_ratio(START)) == (0.0, 0.0, 0.0)
    assert b.shared_meter() is None
    assert usage_row(b, START).tokens is None


def test_recorded_use_throttles_the_next_request():
    b = bucket()
    b.record(11_000, START)
    assert usage_row(b, START).throttled_total == 0
    assert b.admit(START) == (1.0, True)
    b.record(-1_000, START)
    assert b.admit(START) == (0.0, False)
    assert b.amount_total == 10_000


def test_first_requests_wait_one_after_the_other():
    b = bucket()
    assert b.enter_queue(700, inf, START) == (0.0, False, inf)
    b.record(11_000, START)
    assert b.enter_queue(700, inf, START) == (1.0, True, START + 1.0)
    assert b.enter_queue(300, inf, START) == (1.0, True, START + 1.7)
    assert b.first_requests.waiting == 1_000
    b.first_requests.leave(700)
    b.record(700, START + 1.0)
    b.first_requests.leave(300)
    assert b.enter_queue(300, START + 1.7, START + 1.0) == (pytest.approx(0.7), True, START + 1.7)
    b.first_requests.leave(300)
    assert b.enter_queue(300, START + 1.7, START + 1.7) == (0.0, False, START + 1.7)


def test_claims_of_other_requests_delay_a_turn_little():
    b = bucket()
    b.record(13_000, START)
    b.enter_queue(10**9, inf, START)
    assert b.enter_queue(300, inf, START) == (3.0, True, START + 3.0 + LONGEST_TURN_SECONDS)


def test_request_waits_for_none_once_the_debt_is_paid():
    b = bucket()
    b.record(13_000, START)
    b.enter_queue(10**9, inf, START)
    assert b.enter_queue(300, START + 18.0, START + 3.0)[:2] == (0.0, False)


def test_turn_comes_in_spite_of_later_debts():
    b = bucket()
    b.record(11_000, START)
    _, _, turn = b.enter_queue(300, inf, START)
    b.first_requests.leave(300)
    b.record(50_000, START + 0.5)
    assert b.enter_queue(300, turn, START + 1.0)[:2] == (0.0, False)


def test_first_requests_wait_for_no_unenforced_debt():
    b = bucket(enforce=False)
    b.meter.charge(11_000, START)
    assert b.enter_queue(700, inf, START) == (1.0, False, START + 1.0)
    assert b.first_requests.waiting == 0


def test_connection_over_the_rate_uses_nothing():
    b = bucket("connection", meter=TokenBucket(2.0, 1.0, START))
    assert [b.charge_connection(30.0, START) for _ in range(3)] == [(0.0, False), (0.0, False), (0.5, True)]
    assert b.charge_connection(0.25, START) == (0.25, True)
    assert (b.amount_total, b.meter.tokens(START)) == (2, 0.0)
    b.policy.enforce = False
    assert b.charge_connection(30.0, START) == (0.5, False)
    assert b.amount_total == 3


def test_consumers_take_turns_after_their_responses():
    b = bucket()
    b.connections = 2
    b.charge(BURST, START)
    first, second = consumer(400), consumer(0)
    assert b.charge_fetch(first, 400, START) == (pytest.approx(0.4), True)
    assert b.admit_fetch(second, START) == (pytest.approx(0.8), True)
    assert b.amount_total == 10_400
    b.line.answered(consumer(0), b.meter, START)
    assert b.charge_fetch(consumer(1), 0, START)[1]
    assert b.line._usual == 1
    b.charge_fetch(second, 0, START)
    assert b.line._usual == 1, "an answer without records is no measure"


@pytest.mark.parametrize("enforce", [True, False])
def test_consumer_within_the_quota_waits_for_nobody(enforce):
    b = bucket(enforce=enforce)
    assert b.charge_fetch(consumer(400), 400, START) == b.admit_fetch(consumer(400), START) == (0.0, False)
    assert b.amount_total == 400


def test_kafkas_window_gives_no_turns():
    b = bucket(meter=WindowMeter(LIMIT, SHORT))
    assert b.takes_back
    assert b.charge_fetch(consumer(400), 3_000, START) == b.admit_fetch(consumer(400), START) == (pytest.approx(1.0), True)
    assert b.line.length == 0.0


def test_refused_response_presumes_nothing():
    b = bucket(meter=SharedMeter(WindowMeter(LIMIT, SHORT), LIMIT, 0.25, 0.6))
    assert b.charge_fetch(consumer(400), 1_500, START) == (0.0, False), "with 4 500 bytes of peers, more than the capacity"
    held = b.meter.presumed
    assert held == 1_100.0
    for _ in range(3):
        assert b.charge_fetch(consumer(400), 1_500, START + 0.1)[1]
        b.record(-1_500, START + 0.1)
    b.charge(0, START + 0.1)
    assert (b.meter.presumed, b.meter.balance(START + 0.1), b.amount_total) == (held, -500.0, 1_500)


@pytest.mark.parametrize(("used", "amount"), [(0, 5_000), (6_000, 3_000), (8_700, 300), (9_500, 0), (12_000, 0)])
def test_reservations_stay_within_the_balance(used, amount):
    b = bucket()
    b.connections = 2
    b.charge(used, START)
    assert b.reserve_fetch(consumer(1_000), 5_000, START) == 1_000, "one reservation may exceed it"
    assert b.reserve_fetch(consumer(5_000), 5_000, START) == amount
    assert b.line.promised == 1_000 + amount


def test_window_has_no_balance_to_divide():
    b = bucket(meter=WindowMeter(LIMIT, SHORT))
    assert [b.reserve_fetch(consumer(5_000), 5_000, START) for _ in range(2)] == [5_000, 5_000]


@pytest.mark.parametrize(("requested", "exhausted"), [(0, False), (1, False), (9_949, False), (9_950, False), (9_951, True)])
def test_fetches_exhaust_a_bucket_below_a_portion(requested, exhausted):
    assert bucket().exhausted_by(requested, START) is exhausted


def test_reservations_of_all_connections_exhaust_a_bucket():
    b = bucket()
    b.line.reserve(9_951)
    assert b.exhausted_by(1, START)
    assert not b.exhausted_by(0, START)
    b.policy.enforce = False
    assert not b.exhausted_by(1, START)


def test_one_request_exhausts_kafkas_window():
    assert bucket(meter=WindowMeter(LIMIT, SHORT)).exhausted_by(1, START)


@pytest.mark.parametrize(
    ("batch", "first", "requested", "connections", "bytes_"),
    [
        (0, False, 0, 1, 10_000),
        (0, False, 4_000, 1, 6_000),
        (0, False, 0, 4, 2_500),
        (300, False, 0, 1, 9_900),
        (30_000, False, 0, 1, 1),
        (1, False, 0, 1, 10_000),
        (0, True, 0, 4, 50),
        (0, True, 0, 1, 10_000),
    ],
)
def test_fetch_may_request_its_part_of_the_balance(batch, first, requested, connections, bytes_):
    b = bucket()
    b.connections = connections
    found = b.fetch_allowance(batch, START, first=first, requested=requested)
    assert found == (bytes_ if batch != 30_000 else 10_000 - 10_000 % 30_000 or 1)


def test_reserved_bytes_are_not_requested_again():
    b = bucket()
    b.connections = 1
    b.line.reserve(9_000)
    assert b.fetch_allowance(0, START, requested=500) == 1_000


def test_unenforced_bucket_limits_no_fetch():
    assert bucket(enforce=False).fetch_allowance(0, START) is None


def test_early_requests_add_up():
    b = bucket()
    for seconds in (0.5, 2.0, 1.0):
        b.note_early(seconds)
    row = usage_row(b, START)
    assert (row.early_total, row.early_seconds_total, row.early_seconds_max) == (3, 3.5, 2.0)


def test_throttle_left_has_the_line_until_the_bucket_is_full():
    b = bucket()
    b.charge(BURST + 100, START)
    b.admit_fetch(consumer(400), START)
    assert b.throttle_left(START) == pytest.approx(0.5)
    assert b.throttle_left(START + 11.0) == 0.0


def ticks(b, moments):
    for moment in moments:
        b.policy.tick(START + moment)
        b.tick(START + moment, marking=b.policy.marking)


def test_seconds_with_use_or_its_throttle_are_active():
    b = bucket()
    ticks(b, [1])
    assert b.active_seconds == 0
    b.charge(12_000, START + 1.5)
    ticks(b, [2, 3])
    assert (b.active_seconds, b.last_used) == (2, START + 2)
    ticks(b, [4, 5])
    assert b.active_seconds == 2, "nobody waits any more"


def test_rate_counts_the_marks_of_its_window():
    b = bucket(enforce=False)
    b.charge(600, START)
    assert b.rate(START) == b.rate_of_all(START) == 300.0, "the least time is the window's"
    ticks(b, [1, 2])
    b.charge(200, START + 2)
    assert (b.used_lately(), b.recent(START), b.total()) == (800, 800, 800)
    assert b.rate(START + 2) == 400.0
    ticks(b, [3])
    assert (b.used_lately(), b.rate(START + 3)) == (200, 100.0)
    b.record(-300, START + 3)
    assert b.used_lately() == 0, "more was given back than used lately"


def test_use_of_peers_counts_for_the_rate_of_all():
    b = bucket()
    ticks(b, [1])
    assert b.rate_of_all(START + 1) == 0.0
    b.charge(200, START + 1)
    b.charge_others(400, START + 1, no_debt=False)
    b.charge_others(100, START + 1, no_debt=False)
    assert (b.rate(START + 1), b.rate_of_all(START + 1), b.others_total, b.last_used) == (100.0, 350.0, 500, START + 1)
    ticks(b, [2, 3])
    assert b.rate_of_all(START + 3) == 350.0
    ticks(b, [4])
    assert b.rate_of_all(START + 4) == 0.0


def test_use_of_peers_is_charged_to_a_shared_meter():
    b = bucket(meter=SharedMeter(token_bucket(), LIMIT))
    assert b.shared_meter() is b.meter
    b.charge_others(4_000, START, no_debt=False)
    assert b.meter.tokens(START) == 6_000
    b.charge_others(9_000, START, no_debt=True)
    assert b.meter.tokens(START) == 0.0
    assert b.capacity() == BURST


def test_window_has_the_rate_of_its_meter():
    meter = WindowMeter(LIMIT, SHORT)
    b = bucket(meter=meter)
    b.charge(600, START + 0.5)
    ticks(b, [1, 2, 3])
    b.charge(900, START + 3)
    assert b.rate(START + 3) == b.rate_of_all(START + 3) == 600.0
    assert b.used_ratio(START + 3) == meter.used_ratio(START + 3)
    b.policy.enforce = False
    assert b.rate(START + 3) == b.rate_of_all(START + 3) == 450.0


def test_gateway_reports_its_own_part_of_a_shared_rate():
    b = bucket(meter=SharedMeter(WindowMeter(LIMIT, SHORT), LIMIT))
    b.charge(600, START)
    b.charge_others(400, START, no_debt=False)
    assert b.rate(START) == 300.0
    assert b.rate_of_all(START) == 500.0


def test_even_flow_below_the_burst_stays_below_one():
    b = bucket()
    b.charge(4_000, START)
    assert b.used_ratio(START) == 0.99
    assert bucket().used_ratio(START) == 0.0
    b.charge(7_000, START)
    assert b.used_ratio(START) == pytest.approx(1.1)


def test_ratio_without_enforcement_is_the_rate_once_it_went_over():
    b = bucket(enforce=False)
    b.charge(4_000, START)
    assert b.used_ratio(START) == 0.99
    b.charge(8_000, START)
    assert b.used_ratio(START) == b.used_ratio(START + 2.0) == 6.0
    ticks(b, [1])
    b.charge(1_000, START + 2.1)
    assert b.used_ratio(START + 2.1) == 0.99, "that was longer ago than the window"


def test_tally_has_all_counters():
    b = bucket(enforce=False)
    b.charge(10_500, START)
    b.note_early(0.25)
    whole = b.tally()
    assert (whole.amount, whole.throttled, whole.unenforced, whole.early) == (10_500, 1, 1, 1)
    assert (whole.throttle_seconds, whole.early_seconds) == (0.5, 0.25)


def test_row_has_the_growth_since_a_label_changed():
    b = bucket(enforce=False)
    b.charge(10_500, START)
    b.note_early(0.25)
    b.shown_before = b.tally()
    b.charge(1_500, START)
    b.note_early(0.125)
    row = usage_row(b, START)
    assert (row.amount_total, row.throttled_total, row.unenforced_total, row.early_total) == (1_500, 1, 1, 1)
    assert (row.throttle_seconds_total, row.early_seconds_total, row.early_seconds_max) == (1.5, 0.125, 0.25)


def test_row_names_entity_source_and_episode():
    b = bucket()
    b.connections = 3
    b.charge(11_000, START)
    b.episode.note_address("10.0.0.7")
    row = usage_row(b, START + 2.0)
    assert (row.kind, row.user, row.client_id, row.ip, row.group, row.broker) == ("fetch", "", "etl", "", "", "")
    assert (row.level, row.source, row.limit, row.connections) == ("client-id=etl", "file", LIMIT, 3)
    assert (row.throttled_seconds, row.unthrottled_seconds, row.addresses) == (2.0, 1.0, ("10.0.0.7",))
    assert (row.tokens, row.throttle_left, row.shadow) == (1_000.0, 0.0, False)
    b.policy.enforce = False
    assert usage_row(b, START + 2.0).unthrottled_seconds is None


def test_row_of_other_tags():
    tags = Tags(None, None, ip="10.0.0.7", broker=3)
    resolution = Resolution(tags, None, ClientQuotaEntity(ip="10.0.0.7"), exempt=True)
    row = usage_row(Bucket(KINDS["connection"], resolution, None, Policy(True, SHORT, START), KindTotals(), START), START)
    assert (row.ip, row.broker, row.level, row.source) == ("10.0.0.7", "3", "ip=10.0.0.7 (exempt)", "")
    group = Bucket(
        KINDS["fetch"],
        Resolution(Tags(None, None, group="jobs"), None, None),
        None,
        Policy(True, SHORT, START),
        KindTotals(),
        START,
    )
    assert (usage_row(group, START).group, usage_row(group, START).level, group.resolution.configured) == ("jobs", "", False)


def test_only_unused_full_buckets_are_forgotten():
    b = bucket()
    b.charge(2_000, START)
    b.tick(START, marking=False)
    assert not b.forgettable(START + 1.9, 1.0), "it is not full"
    assert b.forgettable(START + 2.0, 2.0)
    assert not b.forgettable(START + 2.0, 2.1)
    b.connections = 1
    assert not b.forgettable(START + 2.0, 2.0)
    assert bucket(unlimited=True).forgettable(START + 5.0, 5.0)


def test_rebound_bucket_keeps_the_marks_that_stay():
    b = bucket(enforce=False)
    for second in range(1, 4):
        b.charge(100, START + second)
        b.charge_others(10, START + second, no_debt=False)
        ticks(b, [second])
    before, policy = b.policy, Policy(False, Window(2, 1.0), START + 3)
    b.rebind(policy, policy.follow(before, START + 3))
    assert b.policy is policy
    assert (len(b.marks), b.marks[policy.newest], b.others_marks[policy.newest]) == (2, 300, 30)
    assert b.marks[policy.oldest] == 200
    assert b.others_marks[policy.oldest] == 20


def test_acquired_bucket_of_a_default_is_not_configured():
    quotas = (EntityQuota(ClientQuotaEntity(None, "etl"), {"producer_byte_rate": LIMIT}),)
    engine = QuotaEngine(QuotaSettings(quotas), START)
    assert bucket_of(engine, "produce", "alice", "etl", START).resolution.configured
    assert not bucket_of(engine, "produce", "alice", "other", START).resolution.configured


def test_shown_total_never_falls():
    b = bucket()
    shown = []
    for amount in (100, -40, 20, 30):
        b.record(amount, START)
        shown.append(usage_row(b, START).amount_total)
    assert shown == [100, 100, 100, 110]
