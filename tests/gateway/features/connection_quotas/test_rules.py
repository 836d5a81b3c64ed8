from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.connection_quotas.rules import (
    AcceptLimits,
    ConnectionLimits,
    ConnectionQuotas,
    ConnectionSlot,
    Refusal,
)
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.meter import Window
from gateway.quotas.settings import QuotaSettings
from tests.gateway.quotas.engines import rows_of

START = 1_000.0
ALICE, BOB = "10.0.0.1", "10.0.0.2"
NONE = AcceptLimits()


def settings(rates=(), exempt=(), **rest):
    """`rates`: (ip, connections per second)."""
    quotas = [EntityQuota(ClientQuotaEntity(ip=ip), {"connection_creation_rate": rate}) for ip, rate in rates]
    quotas += [EntityQuota(ClientQuotaEntity(ip=ip), exempt=True) for ip in exempt]
    return QuotaSettings(tuple(quotas), **rest)


def quotas(rates=(), *, max_per_ip=1_000, overrides=None, gateway=NONE, listener=NONE, engine=None, **rest):
    """Two listeners, `a` with the limits of `listener` and `b` without limits. The burst is ten seconds."""
    engine = engine or QuotaEngine(settings(rates, **rest), START)
    return ConnectionQuotas(engine, limits(max_per_ip, overrides, gateway, listener), START)


def limits(max_per_ip=1_000, overrides=None, gateway=NONE, listener=NONE):
    return ConnectionLimits(max_per_ip, overrides or {}, gateway, {"a": listener, "b": NONE})


def open_all(subject, count, ip=ALICE, now=START):
    """Open `count` connections and check that each is admitted."""
    slots = [subject.accept("a", ip, now) for _ in range(count)]
    assert all(isinstance(slot, ConnectionSlot) for slot in slots)
    return slots


def test_address_has_at_most_max_per_ip_connections():
    subject = quotas(max_per_ip=2)
    first, _ = open_all(subject, 2)
    assert subject.accept("b", ALICE, START) == Refusal("max_per_ip")
    open_all(subject, 2, BOB)
    first.release()
    first.release()
    assert (subject.count(ALICE), subject.gateway.connections) == (1, 3)
    open_all(subject, 1)
    assert subject.accept("a", ALICE, START) == Refusal("max_per_ip")


def test_connection_over_max_per_ip_uses_the_rate():
    """As in Kafka's `ConnectionQuotas.inc`. Otherwise a client at its maximum could connect again at once, for ever."""
    subject = quotas([(ALICE, 1)], max_per_ip=1)
    open_all(subject, 1)
    assert [subject.accept("a", ALICE, START) for _ in range(9)] == [Refusal("max_per_ip")] * 9
    assert subject.accept("a", ALICE, START) == Refusal("connection_creation_rate", 1.0)
    assert subject.accept("a", ALICE, START + 1.0) == Refusal("max_per_ip")


def test_override_replaces_maximum_of_its_address():
    subject = quotas(max_per_ip=2, overrides={ALICE: 5, BOB: 1})
    open_all(subject, 5)
    open_all(subject, 1, BOB)
    assert subject.accept("a", ALICE, START) == Refusal("max_per_ip") == subject.accept("a", BOB, START)


def test_lowered_maximum_closes_no_connection():
    subject = quotas()
    slots = open_all(subject, 3)
    subject.apply(limits(1), START)
    assert subject.accept("a", ALICE, START) == Refusal("max_per_ip")
    for slot in slots:
        slot.release()
    open_all(subject, 1)


def test_leave_without_arrival_is_an_error():
    with pytest.raises(ValueError, match=ALICE):
        quotas().release("a", ALICE)


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_address_over_rate_is_refused_and_not_charged(algorithm):
    subject = quotas([(ALICE, 5)], algorithm=algorithm)
    open_all(subject, 50)
    for _ in range(100):  # each gets the same delay, because refused connections are not counted
        verdict = subject.accept("a", ALICE, START)
        assert (verdict.reason, verdict.delay) == ("connection_creation_rate", pytest.approx(0.2))
    open_all(subject, 100, BOB)
    assert subject.gateway.connections == 150


def test_token_bucket_admits_exactly_the_rate():
    subject = quotas([(DEFAULT, 5)])
    open_all(subject, 50)
    let_in = [isinstance(subject.accept("a", ALICE, START + tick / 100), ConnectionSlot) for tick in range(1, 1_001)]
    assert sum(let_in) == 50  # in ten seconds
    assert max(len(run) for run in "".join("x" if one else " " for one in let_in).split("x")) <= 20  # and evenly


def test_address_is_held_for_at_most_one_sample():
    subject = quotas([(ALICE, 50)], algorithm="window", window=Window(11, 2.0))
    open_all(subject, 500)
    subject._engine.apply(settings([(ALICE, 1)], algorithm="window", window=Window(11, 2.0)), START)
    subject.apply(limits(), START)
    assert subject.accept("a", ALICE, START) == Refusal("connection_creation_rate", 2.0)


@pytest.mark.parametrize("by_broker", [True, False])
def test_scope_broker_gives_an_address_its_rate_at_each_broker(by_broker):
    subject = quotas([(ALICE, 2)], by_broker=by_broker)
    for _ in range(21):
        subject.accept("a", ALICE, START, broker=1)
    refused = [isinstance(subject.accept("a", ALICE, START, broker=broker), Refusal) for broker in (1, 2)]
    assert refused == [True, not by_broker]


def test_scope_broker_gives_a_user_its_rate_at_each_broker():
    rate = EntityQuota(ClientQuotaEntity("alice"), {"connection_creation_rate": 2})
    subject = quotas(engine=QuotaEngine(QuotaSettings((rate,), by_broker=True), START))
    slots = [subject.accept("a", ALICE, START, broker=broker) for broker in (*[1] * 22, 2)]
    assert [slot.identify("alice", START).delay > 0 for slot in slots][-2:] == [True, False]


def test_default_rate_is_per_address_and_exemptions_win():
    subject = quotas([(DEFAULT, 1)], exempt=[BOB])
    open_all(subject, 10)
    assert isinstance(subject.accept("a", ALICE, START), Refusal)
    open_all(subject, 10, "10.0.0.3")
    open_all(subject, 1_000, BOB)


def test_unenforced_limits_are_only_counted():
    engine = QuotaEngine(settings([(ALICE, 1)], enforce=False), START)
    subject = quotas(engine=engine, listener=AcceptLimits(None, 1.0))
    open_all(subject, 12)
    (row,) = rows_of(engine, START)
    assert (row.kind, row.ip, row.throttled_total, row.amount_total) == ("connection", ALICE, 2, 12)
    assert subject.wait("a", START) == 0.0


def test_enforcement_starts_without_debts_of_listeners():
    before = settings(enforce=False)
    engine = QuotaEngine(before, START, shared=True)
    rate = AcceptLimits(None, 1.0)
    subject = quotas(engine=engine, listener=rate, gateway=rate)
    for quota in (subject.gateway, subject.listeners["a"]):
        quota.charge_others(70, START, no_debt=False)
    engine.apply(replace(before, enforce=True), START)
    subject.apply(limits(listener=rate, gateway=rate), START)
    assert [quota.meter.delay(START) for quota in (subject.gateway, subject.listeners["a"])] == [0.0, 0.0]


def test_reload_of_enforced_limits_keeps_debts_of_listeners():
    engine = QuotaEngine(settings(), START, shared=True)
    rate = AcceptLimits(None, 1.0)
    subject = quotas(engine=engine, listener=rate)
    subject.listeners["a"].charge_others(70, START, no_debt=False)
    subject.apply(limits(listener=rate), START)
    assert subject.listeners["a"].meter.delay(START) == 60.0


def test_shown_address_has_rate_limit_and_throttles():
    engine = QuotaEngine(settings([(DEFAULT, 5)]), START)
    subject = quotas(engine=engine)
    open_all(subject, 50)
    subject.accept("a", ALICE, START)
    (row,) = rows_of(engine, START)
    assert (row.user, row.client_id, row.ip, row.level, row.limit) == ("", "", ALICE, "ip=<default>", 5)
    assert (row.amount_total, row.throttled_total) == (50, 1)
    assert row.throttle_seconds_total == pytest.approx(0.2)
    (connections,) = (total for total in engine.throttle_totals() if total.kind == "connection")
    assert connections.seconds == pytest.approx(0.2)


def test_departed_address_without_quota_leaves_no_state():
    engine = QuotaEngine(QuotaSettings(), START)
    subject = quotas(engine=engine)
    for number in range(1_000):
        open_all(subject, 1, f"10.0.{number // 250}.{number % 250}")[0].release()
    assert rows_of(engine, START) == []
    assert subject._per_ip == {}


def test_excess_addresses_share_one_bucket():
    engine = QuotaEngine(settings([(DEFAULT, 1)]), START, max_buckets=10, max_labelled=5)
    subject = quotas(engine=engine)
    verdicts = [subject.accept("a", f"10.0.0.{number}", START) for number in range(100)]
    assert engine.overflowed == 90
    # Ten addresses had a place each, and ten their own bucket for further names. The other eighty shared a burst of ten.
    assert sum(isinstance(verdict, ConnectionSlot) for verdict in verdicts) == 30
    assert len(rows_of(engine, START)) == 6
    engine.tick(START + 20.0)
    assert isinstance(subject.accept("a", "10.0.1.1", START + 20.0), ConnectionSlot)


@pytest.mark.parametrize("where", ["listener", "gateway"])
@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_connection_over_rate_waits(where, algorithm):
    subject = quotas(algorithm=algorithm, **{where: AcceptLimits(None, 4.0)})
    open_all(subject, 40)
    assert subject.wait("a", START) == 0.0
    open_all(subject, 1)
    assert subject.wait("a", START) == pytest.approx(0.25)
    assert subject.wait("a", START + 0.2) == pytest.approx(0.05)
    assert subject.wait("a", START + 0.25) == 0.0
    assert subject.wait("b", START) == (pytest.approx(0.25) if where == "gateway" else 0.0)
    assert subject.listeners["a"].throttle_seconds_total == pytest.approx(0.25)


def test_refused_connections_delay_no_others():
    subject = quotas([(ALICE, 1)], max_per_ip=20, listener=AcceptLimits(None, 4.0))
    open_all(subject, 10)
    open_all(subject, 20, BOB)
    for _ in range(1_000):
        assert isinstance(subject.accept("a", ALICE, START), Refusal)
        assert isinstance(subject.accept("a", BOB, START), Refusal)
    assert subject.wait("a", START) == 0.0


@pytest.mark.parametrize("where", ["listener", "gateway"])
def test_connection_at_maximum_waits_for_a_close(where):
    subject = quotas(**{where: AcceptLimits(2, None)})
    waits = []
    subject.on_release(lambda: waits.append(subject.wait("a", START)))
    first, _ = open_all(subject, 2)
    assert subject.wait("a", START) == inf
    assert subject.wait("b", START) == (inf if where == "gateway" else 0.0)
    first.release()
    assert waits == [0.0]


def test_raised_maximum_wakes_waiting_connections():
    subject = quotas(listener=AcceptLimits(1, None))
    waits = []
    subject.on_release(lambda: waits.append(subject.wait("a", START)))
    open_all(subject, 1)
    subject.apply(limits(listener=AcceptLimits(2, None)), START)
    assert waits == [0.0]


def test_changed_rate_keeps_use_and_removed_rate_admits_all():
    subject = quotas(listener=AcceptLimits(None, 4.0))
    open_all(subject, 41)
    subject.apply(limits(listener=AcceptLimits(None, 2.0)), START)
    open_all(subject, 1)
    assert subject.wait("a", START) == pytest.approx(1.0)  # 2 over at 2 a second
    subject.apply(limits(), START)
    open_all(subject, 1_000, BOB, now=START + 1.0)
    assert subject.wait("a", START + 1.0) == 0.0


def test_raised_rate_shortens_the_wait():
    subject = quotas(listener=AcceptLimits(None, 2.0))
    open_all(subject, 24)
    assert subject.wait("a", START) == 1.0
    subject.apply(limits(listener=AcceptLimits(None, 100.0)), START)
    assert subject.wait("a", START) == pytest.approx(0.04)
    subject.apply(limits(), START)
    assert subject.wait("a", START) == 0.0


def test_rate_uses_configured_algorithm():
    engine = QuotaEngine(QuotaSettings(), START)
    subject = quotas(engine=engine, gateway=AcceptLimits(None, 4.0))
    assert subject.gateway.meter.tokens(START) == 40.0
    engine.apply(QuotaSettings(algorithm="window"), START)
    subject.apply(limits(gateway=AcceptLimits(None, 4.0)), START)
    assert subject.gateway.meter.tokens(START) is None


@given(st.lists(st.tuples(st.sampled_from(["open", "close"]), st.sampled_from([ALICE, BOB]), st.sampled_from("ab"))))
def test_counts_match_open_connections_within_limits(events):
    subject = quotas(max_per_ip=3, gateway=AcceptLimits(5, None), listener=AcceptLimits(2, None))
    slots: list[tuple[str, str, ConnectionSlot]] = []
    for what, ip, listener in events:
        if what == "close" and slots:
            slots.pop(0)[2].release()
        elif what == "open" and subject.wait(listener, START) == 0.0:
            verdict = subject.accept(listener, ip, START)
            if isinstance(verdict, ConnectionSlot):
                slots.append((ip, listener, verdict))
        of_ip = {ip: sum(slot[0] == ip for slot in slots) for ip in (ALICE, BOB)}
        of_listener = {name: sum(slot[1] == name for slot in slots) for name in "ab"}
        assert of_ip == {ip: subject.count(ip) for ip in of_ip}
        assert of_listener == {name: gate.connections for name, gate in subject.listeners.items()}
        assert max(of_ip.values()) <= 3
        assert of_listener["a"] <= 2
        assert subject.gateway.connections == len(slots) <= 5
