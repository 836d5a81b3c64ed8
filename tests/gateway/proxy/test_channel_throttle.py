"""The throttle of one connection, called as sessions and their handlers call it."""

import weakref

import pytest

from gateway.proxy.channel_throttle import ChannelThrottle
from gateway.proxy.counters import Counters
from gateway.proxy.handler import InterceptedRequest
from gateway.proxy.in_flight import Entry
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from protocol.api_keys import ApiKey
from tests.gateway.proxy.transcript import START, SilentWire, limits
from tests.gateway.quotas.engines import bucket_of

FETCH = ApiKey.FETCH << 16 | 11


class Alarms(SilentWire):
    """A wire that keeps the alarms, and the bytes that the client has sent during the mute."""

    def __init__(self):
        self.alarms = []
        self.unread = 0

    def wake_at(self, when):
        self.alarms.append(when)

    def unread_client_bytes(self):
        return self.unread

    def client_silence_seconds(self):
        return 0.25


class Records:
    """Keeps all that a session records."""

    def __init__(self):
        self.throttles, self.holds, self.sent_early = [], [], []

    def throttled(self, origin, api_key, bucket, amount, verdict, now):
        self.throttles.append((origin, api_key, bucket, amount, verdict, now))

    def delayed_for_volume(self, origin, bucket, amount, seconds, now):
        self.holds.append((origin, bucket, amount, seconds, now))

    def early(self, origin, bucket, seconds, now):
        self.sent_early.append((origin, bucket, seconds, now))


class Gate:
    delay = 0.0


class Muted:
    """A throttle with all that surrounds it. `bucket` allows 1000 bytes per second and 10 000 at once."""

    def __init__(self, **rest):
        self.wire, self.records, self.gate, self.counters = Alarms(), Records(), Gate(), Counters()
        self.engine = QuotaEngine(limits(produce=1_000.0, fetch=1_000.0, **rest), START)
        self.bucket = bucket_of(self.engine, "produce", "ANONYMOUS", "etl", START)
        self.fetches = bucket_of(self.engine, "fetch", "ANONYMOUS", "etl", START)
        self.throttle = ChannelThrottle(self.wire, self.counters, self.records, self.gate)
        self.entry = Entry(1, FETCH, START)

    def start(self, seconds, bucket=None, entry=None):
        self.throttle.start((seconds, True), START, bucket or self.bucket, entry)

    def reconsider(self, now):
        self.throttle.reconsider(now, {"produce": (self.bucket,)})


def approx(*values):
    return pytest.approx(list(values))


def test_charge_records_the_request_that_goes_over():
    m = Muted()
    m.throttle.charge((m.bucket,), 10_000, START, m.entry)
    assert m.records.throttles == []
    m.throttle.charge((m.bucket,), 500, START, m.entry)
    m.throttle.charge((m.bucket,), 500, START, None)
    origin = m.throttle.origin
    assert m.records.throttles == [
        (origin, ApiKey.FETCH, m.bucket, 500, (0.5, True), START),
        (origin, ApiKey.PRODUCE, m.bucket, 500, (1.0, True), START),
    ]


def test_unenforced_charge_is_recorded_without_mute():
    m = Muted(enforce=False)
    m.throttle.charge((m.bucket,), 10_500, START, m.entry)
    assert [record[4] for record in m.records.throttles] == [(0.5, False)]
    assert not m.throttle.active


def test_deferred_request_is_recorded_without_amount():
    m = Muted()
    m.throttle.defer((0.5, True), START, m.bucket, ApiKey.METADATA)
    assert m.records.throttles == [(m.throttle.origin, ApiKey.METADATA, m.bucket, 0, (0.5, True), START)]
    assert m.throttle.active


def test_volume_delay_is_recorded_with_its_amount():
    m = Muted()
    m.throttle.record_volume_delay(2.0, START, m.bucket, 700)
    assert m.records.holds == [(m.throttle.origin, m.bucket, 700, 2.0, START)]
    assert not m.throttle.active


def test_mute_lasts_a_millisecond_at_least():
    m = Muted()
    m.start(0.0001)
    assert m.wire.alarms == approx(START + 0.001)


def test_longer_delay_moves_the_alarm_and_a_shorter_one_does_not():
    m = Muted()
    for seconds in (0.5, 0.25, 1.0):
        m.start(seconds)
    assert m.wire.alarms == approx(START + 0.5, START + 1.0)
    assert m.counters.muted == 1


def test_first_of_two_equal_mutes_is_the_cause():
    m = Muted()
    m.start(0.5)
    m.start(0.5, m.fetches)
    assert m.throttle.cause == "producer_byte_rate of client-id=etl"
    m.start(0.75, m.fetches)
    assert m.throttle.cause == "consumer_byte_rate of client-id=etl"


def test_longer_of_volume_delay_and_quota_is_the_cause():
    m = Muted()
    assert (m.throttle.cause, m.throttle.kinds) == ("", set())
    m.throttle.mute_for_volumes(2.0, START, m.bucket, None)
    assert m.throttle.cause == "volumes"
    m.start(1.0)
    assert m.throttle.cause == "volumes"
    m.start(3.0)
    assert m.throttle.cause == "producer_byte_rate of client-id=etl"
    m.throttle.mute_for_volumes(2.5, START, m.bucket, None)
    assert m.throttle.cause == "producer_byte_rate of client-id=etl"
    m.throttle.mute_for_volumes(4.0, START, m.bucket, None)
    assert m.throttle.cause == "volumes"


def test_mute_for_volumes_waits_for_the_response():
    m = Muted()
    m.throttle.mute_for_volumes(0.5, START, m.bucket, m.entry)
    assert not m.throttle.wake(START + 0.5)
    assert not m.throttle.answered(Entry(1, FETCH, START)), "of another request"
    assert m.throttle.answered(m.entry)
    assert not m.throttle.active
    assert (m.throttle.cause, m.throttle.kinds) == ("", set())
    assert m.counters.muted == 0


def test_bytes_are_early_only_after_the_response():
    m = Muted()
    m.start(0.5)
    m.wire.unread = 5
    assert m.throttle.wake(START + 0.5)
    assert m.bucket.early_total == 0
    m.start(0.5, entry=m.entry)
    assert not m.throttle.answered(m.entry)
    m.wire.unread = 6
    assert m.throttle.wake(START + 0.6)
    assert m.records.sent_early == [(m.throttle.origin, m.bucket, pytest.approx(0.15), START + 0.6)]
    assert m.bucket.early_seconds_total == pytest.approx(0.15)


@pytest.mark.parametrize("late", [0.245, 0.25, 0.3])
def test_bytes_before_a_late_timer_are_not_early(late):
    m = Muted()
    m.start(0.5)
    assert not m.throttle.answered(m.entry)
    m.wire.unread = 6
    assert m.throttle.wake(START + 0.5 + late)
    assert m.records.sent_early == []
    assert m.bucket.early_total == 0


def test_no_throttle_time_is_left_after_an_early_timer():
    m = Muted()
    m.start(0.5)
    assert m.throttle.time_left_ms(START + 0.25) == 250
    assert m.throttle.wake(START + 0.4994)
    assert m.throttle.time_left_ms(START + 0.4994) == 0


def test_timer_that_is_too_early_is_set_again():
    m = Muted()
    m.start(0.5)
    assert not m.throttle.wake(START + 0.4985)
    assert m.wire.alarms == approx(START + 0.5, START + 0.5)
    assert m.throttle.active


def test_cleared_debt_ends_the_mute_of_its_bucket_only():
    m = Muted()
    m.start(5.0)
    m.throttle.let_go({m.fetches}, START + 1.0)
    assert m.throttle.until == START + 5.0
    m.throttle.let_go({m.bucket}, START + 1.0)
    assert m.wire.alarms == approx(START + 5.0, START + 1.0)


def test_delay_of_volumes_outlasts_a_cleared_debt():
    m = Muted()
    m.gate.delay = 2.0
    m.throttle.mute_for_volumes(5.0, START, m.bucket, None)
    m.throttle.let_go({m.bucket}, START + 1.0)
    assert m.throttle.until == START + 3.0


@pytest.mark.parametrize(("delay", "until"), [(0.0, 1.0), (2.0, 3.0), (30.0, 5.0)])
def test_reload_follows_a_shorter_delay_of_volumes(delay, until):
    m = Muted()
    m.gate.delay = delay
    m.throttle.mute_for_volumes(5.0, START, m.bucket, None)
    m.reconsider(START + 1.0)
    assert m.throttle.until == START + until


def test_delay_of_volumes_has_no_part_in_a_mute_for_a_quota():
    m = Muted()
    m.gate.delay = 4.0
    m.bucket.charge(10_500, START)
    m.start(5.0)
    m.reconsider(START)
    assert m.throttle.until == START + 0.5


def test_reload_looks_at_the_debts_of_all_buckets():
    m = Muted()
    m.bucket.charge(11_000, START)
    m.fetches.charge(12_000, START)
    m.start(5.0)
    m.throttle.reconsider(START + 0.5, {"produce": (m.bucket, m.fetches)})
    assert (m.throttle.until, m.throttle.cause) == (START + 2.0, "consumer_byte_rate of client-id=etl")


def test_mute_moves_to_the_bucket_with_the_largest_debt():
    m = Muted()
    old = m.bucket
    m.start(5.0)
    m.engine.apply(
        QuotaSettings(
            (EntityQuota(ClientQuotaEntity("ANONYMOUS"), {"producer_byte_rate": 1_000.0, "consumer_byte_rate": 1_000.0}),)
        ),
        START,
    )
    new, fetches = (bucket_of(m.engine, kind, "ANONYMOUS", "etl", START) for kind in ("produce", "fetch"))
    m.gate.delay = 4.0
    new.charge(11_000, START)
    fetches.charge(13_000, START)
    m.throttle.reconsider(START, {"produce": (new, fetches)})
    assert (m.throttle.until, m.throttle.cause) == (START + 3.0, "consumer_byte_rate of user=ANONYMOUS")
    assert old not in (new, fetches)


def test_last_half_second_of_a_window_is_scaled_too():
    m = Muted(algorithm="window")
    m.bucket.charge(15_000, START)
    m.start(5.0)
    m.engine.apply(limits(produce=2_000.0, fetch=1_000.0, algorithm="window"), START)
    m.reconsider(START + 4.5)
    assert m.throttle.until == START + 4.75


def test_mute_lasts_for_the_other_kind_of_quota():
    m = Muted()
    m.bucket.charge(15_000, START)
    m.start(5.0)
    rate = rate_bucket(START)
    m.start(30.0, rate)
    assert m.throttle.kinds == {"produce", "request_rate"}
    m.throttle.reconsider(START + 1.0, {"produce": (m.bucket,), "request_rate": (rate,)})
    assert (m.throttle.until, m.throttle.cause) == (START + 5.0, "producer_byte_rate of client-id=etl")


def test_debt_of_others_does_not_prolong_an_ended_delay():
    m = Muted()
    m.start(1.0)
    rate = rate_bucket(START)
    m.start(30.0, rate)
    m.bucket.charge(30_000, START + 2.0)
    m.throttle.reconsider(START + 2.0, {"produce": (m.bucket,), "request_rate": (rate,)})
    assert m.throttle.until == START + 2.0


@pytest.mark.parametrize("longest", ["produce", "fetch"])
def test_forgiven_mute_lasts_for_the_other_debt(longest):
    m = Muted()
    m.start(5.0 if longest == "produce" else 3.0)
    m.start(3.0 if longest == "produce" else 5.0, m.fetches)
    forgiven, kept = (m.bucket, m.fetches) if longest == "produce" else (m.fetches, m.bucket)
    m.throttle.let_go({forgiven}, START + 1.0)
    assert (m.throttle.until, m.throttle.kinds) == (START + 3.0, {kept.kind.name})
    m.throttle.let_go({kept}, START + 2.0)
    assert m.throttle.until == START + 2.0


def test_mute_that_ends_can_be_reconsidered():
    m = Muted()
    m.start(1.0)
    m.start(5.0, m.fetches)
    m.throttle.let_go({m.fetches}, START + 2.0)
    assert m.throttle.kinds == {"fetch"}
    m.throttle.reconsider(START + 2.0, {"fetch": (m.fetches,)})
    assert m.throttle.until == START + 2.0


def test_forgiven_debt_of_a_shorter_mute_counts_no_more():
    m = Muted()
    m.start(3.0)
    m.start(5.0, m.fetches)
    m.throttle.let_go({m.bucket}, START + 1.0)
    assert m.throttle.until == START + 5.0
    m.throttle.let_go({m.fetches}, START + 2.0)
    assert m.throttle.until == START + 2.0


def test_lowered_debt_of_the_other_kind_stays_lowered():
    m = Muted()
    m.start(9.0)
    m.bucket.charge(12_000, START)
    rate = rate_bucket(START)
    rate.charge(40, START)
    m.start(30.0, rate)
    m.throttle.reconsider(START, {"produce": (m.bucket,), "request_rate": (rate,)})
    m.throttle.let_go({rate}, START + 1.0)
    assert m.throttle.until == START + 2.0


def test_abandoned_mute_is_counted_no_more():
    m = Muted()
    m.throttle.abandon()
    assert m.counters.muted == 0
    m.start(0.5)
    m.throttle.abandon()
    m.throttle.abandon()
    assert (m.counters.muted, m.throttle.active) == (0, False)


def test_each_shortened_mute_of_a_member_is_counted():
    m = Muted()
    m.start(100.0, rate_bucket(START))
    m.throttle.accept_member(30.0, START)
    assert (m.counters.member_mutes, m.throttle.until) == (1, START + 1.0)
    m.start(100.0, rate_bucket(START))
    assert (m.counters.member_mutes, m.throttle.until) == (2, START + 1.0)
    assert m.records.throttles[-1][4] == (1.0, True)
    m.throttle.accept_member(30.0, START)
    assert m.counters.member_mutes == 2, "the mute is as short already"
    m.throttle.accept_member(30.0, START, in_group_protocol=True)
    assert (m.counters.member_mutes, m.throttle.until) == (3, START + 0.5)


def test_mute_for_bytes_spares_no_member():
    m = Muted()
    m.start(20.0)
    m.throttle.accept_member(30.0, START)
    assert (m.counters.member_mutes, m.throttle.until) == (0, START + 20.0)
    m.start(100.0, rate_bucket(START))
    assert m.throttle.until == START + 20.0


def test_forgiven_mute_for_bytes_spares_the_next_member():
    m = Muted()
    m.start(600.0)
    m.throttle.let_go({m.bucket}, START)
    m.start(20.0, rate_bucket(START))
    m.throttle.accept_member(30.0, START)
    assert m.throttle.until == START + 1.0


def test_member_of_the_group_protocol_is_muted_for_half_a_second():
    m = Muted()
    m.start(100.0, rate_bucket(START))
    m.throttle.accept_member(30.0, START, in_group_protocol=True)
    assert m.throttle.until == START + 0.5


def rate_bucket(now):
    quota = EntityQuota(ClientQuotaEntity(None, "etl"), {"request_rate": 1.0})
    return bucket_of(QuotaEngine(QuotaSettings((quota,)), now), "request_rate", "ANONYMOUS", "etl", now)


class Handler:
    """Refers to the throttle of its connection, as the handlers of Produce requests do."""

    def __init__(self, throttle):
        self.throttle = throttle


def test_abandoned_throttle_drops_its_unanswered_request():
    m = Muted()
    handler = Handler(m.throttle)
    m.start(0.5, entry=Entry(1, FETCH, START, InterceptedRequest(handler)))
    dropped = weakref.ref(handler)
    del handler
    assert dropped() is not None
    m.throttle.abandon()
    assert dropped() is None
