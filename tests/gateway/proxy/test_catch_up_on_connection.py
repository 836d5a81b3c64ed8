"""Consumers that catch up on their connections: each response decides about the group that the next one is charged to."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quotas.engine import QuotaEngine
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.shadows import EngineWithShadows
from protocol.cursor import LENGTH_BYTES
from tests.gateway.proxy import messages as m
from tests.gateway.proxy.consumers import Consumers, fixed
from tests.gateway.proxy.transcript import START, Transcript, gateway_address
from tests.gateway.quotas.engines import rows_of
from tests.gateway.quotas.grouped import grouped
from tests.protocol import codec

MAX_LAG = 1_000
VERSIONS = range(4, 19)


def lane(max_lag=MAX_LAG, rate=10**9, **rest):
    return Group("lane", (GroupRule(max_lag=max_lag, **rest),), {"consumer_byte_rate": rate})


TEAM = Group("team", (GroupRule(client_id="etl"),), {"consumer_byte_rate": 10**9, "producer_byte_rate": 1_000})


def settings(*groups):
    return grouped(groups)


def answer(number, lag, version=12, size=1_000, **values):
    """A response of one partition, of which the high watermark is 10 000 000."""
    records = (10_000_000 - lag).to_bytes(8, "big") + m.batch(size)[8:]
    partition = {"partition_index": 0, "error_code": 0, "high_watermark": 10_000_000, "records": records}
    topic = {"topic": "t"} if version < 13 else {}
    values = {"responses": [topic | {"partitions": [partition]}], "session_id": 0} | values
    if version < 7:
        del values["session_id"]
    return codec.encode_response(1, version, values, number)


def reads(t, *lags, version=12, by=None):
    """Fetch once for each lag. Return the groups after the responses."""
    groups = []
    for number, lag in enumerate(lags):
        t.client_sends(m.fetch(number, version=version))
        frame = answer(number, lag, version)
        t.broker_answers(frame, by=by)
        t.client_got(frame)
        groups.append(t.core.client.group)
    return groups


def charge(version=12):
    """Return the bytes that one response is charged."""
    return len(answer(0, 5, version)) - LENGTH_BYTES - (version >= 12)


def used(t):
    return {row.group: row.amount_total for row in rows_of(t.engine, t.now) if row.kind == "fetch" and row.group}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("by", [None, 7])
def test_consumer_changes_lanes_as_it_catches_up(version, by):
    t = Transcript(settings(lane(), TEAM))
    groups = reads(t, 1_000, 1_001, 700, 100, 99, 900, version=version, by=by)
    assert groups == ["team", "lane", "lane", "lane", "team", "team"]
    assert used(t) == {"lane": 3 * charge(version), "team": 3 * charge(version)}


@given(st.lists(st.integers(0, 2_200), max_size=4), st.integers(15, 18))
def test_any_chunks_and_pipelined_answers_find_the_lag(cuts, version):
    t = Transcript(settings(lane(), TEAM))
    t.client_sends(m.fetch(1, version=version), m.fetch(2, version=version))
    frames = answer(1, 5, version) + answer(2, 5_000, version)
    edges = sorted({0, *(cut for cut in cuts if cut < len(frames)), len(frames)})
    for start, end in pairwise(edges):
        t.broker_answers(frames[start:end])
    t.client_got(frames)
    assert t.core.client.group == "lane"


@pytest.mark.parametrize("by", [None, 50])
def test_addresses_behind_records_are_still_translated(by):
    t = Transcript(settings(lane(), TEAM))
    ours = [(node, *gateway_address(node, host, port)) for node, host, port in m.BROKERS]
    t.client_sends(m.fetch(1, version=16))
    t.broker_answers(answer(1, 5_000, 16, node_endpoints=m.node_endpoints(m.BROKERS)), by=by)
    if by is None:
        t.client_got(answer(1, 5_000, 16, node_endpoints=m.node_endpoints(ours)))
    assert len(t.client_inbox) == (0 if by is None else len(answer(1, 5_000, 16, node_endpoints=m.node_endpoints(m.BROKERS))))
    assert t.core.client.group == "lane"


def test_empty_response_keeps_the_lane():
    t = Transcript(settings(lane(), TEAM))
    assert reads(t, 5_000) == ["lane"]
    t.client_sends(m.fetch(9))
    t.broker_answers(m.fetched_nothing(9))
    t.client_got(m.fetched_nothing(9))
    assert t.core.client.group == "lane"
    assert reads(t, 0) == ["team"]


def test_replay_in_debt_delays_no_tail_reader():
    engine = QuotaEngine(settings(lane(rate=100), TEAM), START)
    replay, tail = Transcript(engine=engine), Transcript(engine=engine)
    reads(replay, 5_000)
    replay.client_sends(m.fetch(2))
    replay.broker_answers(answer(2, 5_000))
    assert replay.core.client.group == "lane"
    assert replay.paused
    assert reads(tail, 5, 5) == ["team", "team"]
    assert not tail.paused


def test_reload_changes_the_limit_on_an_open_connection():
    t = Transcript(settings(lane(), TEAM))
    assert reads(t, 1_500) == ["lane"]
    t.configure(settings(lane(max_lag=2_000), TEAM))
    assert reads(t, 1_500) == ["team"]
    t.configure(settings(lane(max_lag=500), TEAM))
    assert reads(t, 501) == ["lane"]
    t.configure(settings(TEAM))
    assert reads(t, 5_000) == ["team"]
    assert t.core.client.lag_limits == ()


def test_new_client_id_stays_in_the_lane():
    t = Transcript(settings(lane(), TEAM))
    assert reads(t, 5_000) == ["lane"]
    t.client_sends(m.fetch(8, client_id="other"))
    assert t.core.client.group == "lane"


def test_new_claims_keep_the_lane():
    t = Transcript(settings(lane(), TEAM))
    assert reads(t, 5_000) == ["lane"]
    t.core.client.identify(t.core.client.user, t.now, frozenset({("team", "a")}))
    assert t.core.client.group == "lane"


def test_new_user_starts_outside_the_lane():
    t = Transcript(settings(lane(), TEAM))
    assert reads(t, 5_000) == ["lane"]
    t.core.client.identify("bob", t.now)
    assert reads(t, 5) == ["team"]
    assert used(t) == {"lane": 0, "team": 2 * charge()}


def test_client_ids_in_turn_do_not_keep_a_replay_out():
    t = Transcript(settings(lane(), replace(TEAM, rules=(GroupRule(client_id="*"),))))
    for number in range(10):
        t.client_sends(m.fetch(number, client_id=f"etl-{number % 2}"))
        t.broker_answers(answer(number, 5_000))
    assert used(t) == {"lane": 9 * charge(), "team": charge()}


def reads_sizes(t, *answers):
    """Fetch once for each pair of lag and bytes of records. Return the groups after the responses."""
    groups = []
    for number, (lag, size) in enumerate(answers):
        t.client_sends(m.fetch(number))
        t.broker_answers(answer(number, lag, size=size))
        groups.append(t.core.client.group)
    return groups


def test_new_record_after_each_batch_does_not_keep_a_replay_out():
    t = Transcript(settings(lane(), TEAM))
    assert reads_sizes(t, *[(5_000, 10_000), (5, 100)] * 20) == ["lane"] * 40


def test_lane_gets_as_many_new_bytes_as_the_group_got_old_ones():
    t = Transcript(settings(lane(), TEAM))
    assert reads_sizes(t, (5_000, 1_000), *[(5, 250)] * 5) == ["lane"] * 4 + ["team"] * 2


def test_old_bytes_in_the_lane_do_not_prolong_it():
    t = Transcript(settings(lane(), TEAM))
    assert reads_sizes(t, *[(5_000, 1_000)] * 9, (5, 1_000)) == ["lane"] * 9 + ["team"]


def test_pipelined_old_bytes_prolong_the_lane():
    """All of them are charged to the usual group, as their requests come before the first response."""
    t = Transcript(settings(lane(), TEAM))
    t.client_sends(*(m.fetch(number) for number in range(3)))
    t.broker_answers(answer(0, 5_000, size=100), answer(1, 5_000, size=1_000), answer(2, 5_000, size=1_000))
    assert reads_sizes(t, *[(5, 1_000)] * 3) == ["lane", "lane", "team"]


def test_lane_is_left_after_a_minute_without_old_bytes():
    t = Transcript(settings(lane(), TEAM))
    assert reads_sizes(t, (5_000, 100_000), (5, 100)) == ["lane", "lane"]
    t.passes(59.9)
    assert reads_sizes(t, (5, 100)) == ["lane"]
    t.passes(0.1)
    assert reads_sizes(t, (5, 100), (5_000, 1_000), (5, 1_000)) == ["team", "lane", "team"]


def test_old_bytes_begin_the_minute_anew():
    t = Transcript(settings(lane(), TEAM))
    reads_sizes(t, (5_000, 100_000))
    t.passes(40.0)
    reads_sizes(t, (100, 100))
    t.passes(40.0)
    assert reads_sizes(t, (5, 100)) == ["lane"]


def test_consumer_leaves_one_lane_after_the_other():
    near = Group("near", (GroupRule(max_lag=100),), {"consumer_byte_rate": 10**9})
    t = Transcript(settings(lane(), near, TEAM))
    assert reads_sizes(t, (5_000, 1_000), (99, 600), (99, 600), (5, 100)) == ["lane", "lane", "near", "team"]


ANSWERS = st.tuples(st.sampled_from([5, 500, 5_000]), st.sampled_from([100, 150, 1_000]))


@given(st.lists(st.lists(ANSWERS, min_size=1, max_size=4), max_size=20))
def test_old_bytes_outside_are_made_up_for_in_the_lane(turns):
    """The Fetches of one turn are pipelined."""
    t = Transcript(settings(lane(), TEAM))
    old_outside = new_inside = 0
    for answers in turns:
        t.client_sends(*(m.fetch(number) for number in range(len(answers))))
        for number, (lag, size) in enumerate(answers):
            before = used(t)
            t.broker_answers(answer(number, lag, size=size))
            after = used(t)
            old_outside += (lag == 5_000) * (after["team"] - before.get("team", 0))
            new_inside += (lag == 5) * (after.get("lane", 0) - before.get("lane", 0))
            assert t.core.client.group == "lane" or old_outside <= new_inside


def test_client_of_no_lane_is_not_followed():
    t = Transcript(settings(lane(user="replay-*"), TEAM))
    assert reads(t, 5_000) == ["team"]
    assert t.core.client.lag_limits == ()


def test_other_requests_follow_the_lane_and_come_back():
    t = Transcript(settings(lane(), TEAM))
    reads(t, 5_000)
    t.client_sends(m.produce(5, size=50_000))
    assert not t.paused
    t.broker_answers(m.produced(5))
    t.client_got(m.produced(5))
    reads(t, 5)
    t.client_sends(m.produce(6, size=50_000))
    assert t.paused


def test_shadow_limit_of_a_lane_counts_its_members():
    quiet = Group("lane", (GroupRule(max_lag=MAX_LAG),), shadow={"consumer_byte_rate": 5_000})
    t = Transcript(engine=EngineWithShadows(settings(quiet, TEAM), START))
    assert reads(t, 5_000, 5_000, 5) == ["lane", "lane", "team"]
    (row,) = (row for row in rows_of(t.engine, t.now) if row.shadow and row.group == "lane")
    assert row.amount_total == 2 * charge()


def test_buckets_are_given_back_after_each_change():
    t = Transcript(settings(lane(), TEAM))
    reads(t, 5_000, 5, 5_000, 5)
    connections = {bucket.resolution.tags.group: bucket.connections for bucket in t.engine.buckets()}
    assert connections == {None: 1, "lane": 0, "team": 1}
    t.core.close(t.now)
    assert all(bucket.connections == 0 for bucket in t.engine.buckets())


def simulate(*groups, replays):
    """Ten tail readers and some replays over 60 s. Return the 99th percentile of the tail readers' pauses, and the use."""
    simulation = Consumers(settings(*groups))
    tails = [simulation.add(fixed(answer(1, 5, size=2_000)), thinks=lambda: 0.05, client_id="etl") for _ in range(10)]
    readers = [simulation.add(fixed(answer(1, 5_000, size=100_000)), client_id="etl") for _ in range(replays)]
    simulation.run(60.0)
    times = [[*(when for when, _ in each.full), simulation.now] for each in tails]
    pauses = sorted(late - early for each in times for early, late in pairwise(each))
    rows = rows_of(simulation.engine, simulation.now)
    use = {row.group: row.amount_total for row in rows if row.kind == "fetch" and row.group}
    return pauses[len(pauses) * 99 // 100], use, sum(size for each in readers for _, size in each.full)


def test_tail_readers_keep_their_latency_beside_replays():
    def team(rate):
        return Group("team", (GroupRule(client_id="etl"),), {"consumer_byte_rate": rate})

    alone, _, _ = simulate(team(1_000_000), replays=0)
    crowded, _, _ = simulate(team(1_000_000), replays=3)
    apart, use, replayed = simulate(lane(rate=500_000), team(500_000), replays=3)
    assert crowded > 2 * alone
    assert apart == pytest.approx(alone, rel=0.1)
    assert use["lane"] >= 0.99 * replayed
