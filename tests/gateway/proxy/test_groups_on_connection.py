"""Members of a group on their connections: both buckets are charged, and the longest delay counts."""

from dataclasses import replace

import pytest

from gateway.features.ledger.fold import ThrottleFolds
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.transcript import START, Transcript
from tests.gateway.quotas.engines import rows_of
from tests.gateway.quotas.grouped import grouped

PAYMENTS = frozenset({("groups", "payments")})


def jobs(**limits):
    """A burst is the amount of ten seconds."""
    return Group("jobs", (GroupRule(client_id="job-*"),), limits)


def settings(*groups, own=None, **rest):
    rows = () if own is None else (EntityQuota(ClientQuotaEntity(None, "job-1"), own),)
    return grouped(groups, *rows, **rest)


def produce(correlation_id, size, client_id="job-1"):
    return m.produce(correlation_id, size=size, client_id=client_id)


def group_row(t, kind="produce"):
    (row,) = (row for row in rows_of(t.engine, t.now) if (row.group, row.kind) == ("jobs", kind))
    return row


def test_member_is_muted_for_the_group():
    t = Transcript(settings(jobs(producer_byte_rate=1_000)))
    t.client_sends(produce(1, 12_000))
    assert t.paused
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=2_000))
    t.passes(1.9)
    assert t.paused
    t.passes(0.1)
    assert not t.paused
    assert (t.row(client_id="job-1").throttled_total, group_row(t).throttled_total) == (0, 1)


@pytest.mark.parametrize(("own", "group", "throttle_ms"), [(1_000, 500, 14_000), (500, 1_000, 14_000)])
def test_longest_delay_of_own_and_group_counts(own, group, throttle_ms):
    t = Transcript(settings(jobs(producer_byte_rate=group), own={"producer_byte_rate": own}))
    t.client_sends(produce(1, 12_000))
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=throttle_ms))


def test_hot_path_charges_the_group_too():
    t = Transcript(settings(jobs(producer_byte_rate=1_000)))
    frames = [produce(number, 1_000) for number in range(12)]
    t.client_sends(*frames, by=700)
    assert group_row(t).amount_total == t.row(client_id="job-1").amount_total == 11_000
    assert t.paused


def test_members_use_one_burst_together():
    engine = QuotaEngine(settings(jobs(producer_byte_rate=1_000)), START)
    first, second, stranger = (Transcript(engine=engine) for _ in range(3))
    first.client_sends(produce(1, 9_000))
    second.client_sends(produce(1, 3_000, "job-2"))
    stranger.client_sends(produce(1, 50_000, "jobless"))
    assert [t.paused for t in (first, second, stranger)] == [False, True, False]
    assert group_row(first).amount_total == 12_000


def test_new_connection_waits_for_the_groups_debt():
    engine = QuotaEngine(settings(jobs(producer_byte_rate=1_000)), START)
    Transcript(engine=engine).client_sends(produce(1, 14_000))
    t = Transcript(engine=engine)
    t.client_sends(produce(1, 500, "job-2"))
    t.broker_got()
    assert t.paused
    t.passes(4.0)
    t.broker_got(produce(1, 500, "job-2"))


def test_new_connection_waits_for_both_debts_at_once():
    engine = QuotaEngine(settings(jobs(producer_byte_rate=1_000), own={"producer_byte_rate": 500}), START)
    Transcript(engine=engine).client_sends(produce(1, 14_000))  # debts of 18 s and of 4 s
    t = Transcript(engine=engine)
    t.client_sends(produce(1, 500))
    t.passes(17.9)
    t.broker_got()
    t.passes(0.1)
    t.broker_got(produce(1, 500))


def test_throttle_is_recorded_for_the_bucket_that_is_over():
    folds = ThrottleFolds()
    t = Transcript(settings(jobs(producer_byte_rate=1_000), own={"producer_byte_rate": 1_000_000}), recorder=folds)
    t.client_sends(produce(1, 12_000))
    (event,) = folds.take("weir-1", t.now, t.now)
    assert (event.group, event.client_id, event.quota) == ("jobs", None, "group=jobs")


def test_requests_of_all_members_share_a_request_rate():
    engine = QuotaEngine(settings(jobs(request_rate=2)), START)
    members = [Transcript(engine=engine) for _ in range(2)]
    for number in range(11):
        for index, t in enumerate(members):
            t.client_sends(m.metadata(number, client_id=f"job-{index}"))
    assert all(t.paused for t in members)
    assert group_row(members[0], "request_rate").amount_total == 22
    own = {row.client_id: row.amount_total for row in rows_of(engine, START) if row.kind == "request_rate" and not row.group}
    assert own == {"job-0": 11, "job-1": 11}


# Changes.


def test_unrelated_change_keeps_the_mute_of_a_group():
    before = settings(jobs(producer_byte_rate=1_000))
    t = Transcript(before)
    t.client_sends(produce(1, 14_000))
    t.configure(replace(before, quotas=(*before.quotas, EntityQuota(ClientQuotaEntity("x"), {"producer_byte_rate": 5}))))
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=4_000))


def test_raised_ceiling_shortens_the_mute():
    t = Transcript(settings(jobs(producer_byte_rate=1_000)))
    t.client_sends(produce(1, 14_000))
    t.configure(settings(jobs(producer_byte_rate=4_000)))
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=1_000))


def test_raised_own_limit_keeps_the_groups_delay():
    t = Transcript(settings(jobs(producer_byte_rate=1_000), own={"producer_byte_rate": 500}))
    t.client_sends(produce(1, 14_000))
    t.configure(settings(jobs(producer_byte_rate=1_000), own={"producer_byte_rate": 1_000_000}))
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1, throttle_time_ms=4_000))


def test_client_that_leaves_its_group_is_unmuted():
    t = Transcript(settings(jobs(producer_byte_rate=1_000)))
    t.client_sends(produce(1, 14_000))
    t.configure(settings())
    t.broker_answers(m.produced(1))
    t.client_got(m.produced(1))
    t.passes(0.001)
    assert not t.paused


def test_open_connection_joins_a_new_group():
    t = Transcript(settings())
    t.client_sends(produce(1, 50_000))
    assert not t.paused
    t.configure(settings(jobs(producer_byte_rate=1_000)))
    t.client_sends(produce(2, 11_000))
    assert t.paused
    assert group_row(t).amount_total == 11_000


def test_claims_put_the_client_into_a_group():
    group = Group("jobs", (GroupRule(claims=PAYMENTS),), {"producer_byte_rate": 1_000})
    t = Transcript(settings(group))
    t.client_sends(produce(1, 50_000))
    assert not t.paused
    t.core.client.identify("alice", t.now, PAYMENTS | {("sub", "alice")})
    t.client_sends(produce(2, 11_000))
    assert t.paused
    t.core.client.identify("alice", t.now, frozenset({("sub", "alice")}))
    t.broker_answers(m.produced(1), m.produced(2))
    t.passes(1.0)
    t.client_sends(produce(3, 50_000))
    assert not t.paused


# Fetch.


def fetch(correlation_id, max_bytes=50_000_000, client_id="job-1"):
    return m.fetch(correlation_id, session=(0, -1), max_bytes=max_bytes, client_id=client_id)


@pytest.mark.parametrize(("own", "group", "allowance"), [(1_000, 4_000, 10_000), (8_000, 2_000, 20_000), (None, 2_000, 20_000)])
def test_fetch_gets_the_smaller_allowance(own, group, allowance):
    own = None if own is None else {"consumer_byte_rate": own}
    t = Transcript(settings(jobs(consumer_byte_rate=group), own=own))
    t.client_sends(fetch(1))
    t.broker_got(fetch(1, max_bytes=allowance))


def test_fetch_of_a_member_is_throttled_for_the_group():
    t = Transcript(settings(jobs(consumer_byte_rate=1_000)))
    t.client_sends(fetch(1))
    t.broker_answers(m.fetched(1, size=12_000))
    t.client_got(m.fetched(1, size=12_000, throttle_time_ms=2_000))
    assert (group_row(t, "fetch").amount_total, group_row(t, "fetch").throttled_total) == (12_000, 1)
    other = Transcript(engine=t.engine)
    other.client_sends(fetch(1, client_id="job-2"))
    other.broker_got()
    # The debt, and the next turn of the first member. That turn is expected to take as much again.
    other.client_got(m.fetched_nothing(1, throttle_time_ms=14_000))


def test_throttled_window_response_is_charged_to_no_bucket():
    own = {"consumer_byte_rate": 100_000}
    t = Transcript(settings(jobs(consumer_byte_rate=1_000), own=own, algorithm="window"))
    t.client_sends(fetch(1))
    t.broker_answers(m.fetched(1, size=50_000))
    assert (group_row(t, "fetch").amount_total, t.row("fetch", "job-1").amount_total) == (0, 0)


def test_facts_of_a_connection_name_its_group():
    t = Transcript(settings(jobs(producer_byte_rate=1_000)))
    groups = []
    for client_id in ("job-1", "jobless"):
        t.client_sends(produce(1, 100, client_id))
        groups.append(t.core.facts(START, (0, 0), t.now).group)
    assert groups == ["jobs", ""]


def test_new_client_ids_take_turns_by_the_number_of_rules():
    """Each of them is compared with each rule, and all clients of the gateway wait."""
    groups = [Group(f"team-{number}", (GroupRule(client_id=f"team-{number}-*"),), {}) for number in range(2_000)]
    t = Transcript(settings(*groups))
    requests = [produce(number, 200, f"job-{number}") for number in range(100)]
    t.client_sends(*requests)
    turns = 1
    while t.called_ready:
        t.run_ready()
        turns += 1
    t.broker_got(*requests)
    assert 10 < turns < 20
