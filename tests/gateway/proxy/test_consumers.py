"""Consumers that share a quota over 30 simulated seconds: the number of empty answers, and the evenness of shares."""

import random
from collections import Counter
from itertools import pairwise

import pytest

from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.settings import QuotaSettings
from tests.gateway.proxy.consumers import NOTHING, Consumers, batched, fixed, full_answer, jain
from tests.gateway.proxy.transcript import START, limits

SECONDS = 30.0
QUOTA = 1_000_000
BURST = 10 * QUOTA
CONSUMERS = 50
ANSWER = full_answer(100_000)


def bandwidth(consumer, since=0.0):
    """Return the bytes of one consumer, from `since` seconds after the start."""
    return float(sum(size for when, size in consumer.full if when >= START + since))


def simulate(topic, *, seconds=SECONDS, consumers=CONSUMERS, quota=QUOTA, algorithm="token_bucket", **options):
    simulation = Consumers(limits(fetch=quota, algorithm=algorithm))
    started = [simulation.add(topic, **options) for _ in range(consumers)]
    simulation.run(seconds)
    return started


def counts(simulated):
    """Return the number of answers with and without records."""
    return sum(len(each.full) for each in simulated), sum(len(each.empty) for each in simulated)


@pytest.mark.parametrize("polite", [True, False])
def test_fifty_consumers_share_evenly(polite):
    simulated = simulate(fixed(ANSWER), polite=polite)
    full, empty = counts(simulated)
    assert empty <= 2 * full
    assert all(len(each.empty) <= 2 * len(each.full) for each in simulated)
    assert jain([bandwidth(each) for each in simulated]) >= 0.95
    assert sum(map(bandwidth, simulated)) >= 0.97 * QUOTA * SECONDS


@pytest.mark.parametrize("batch_bytes", [16_000, 100_000])
def test_consumers_share_evenly_at_any_batch_size(batch_bytes):
    simulated = simulate(batched(batch_bytes))
    full, empty = counts(simulated)
    assert empty <= 2 * full
    assert jain([bandwidth(each) for each in simulated]) >= 0.95
    assert sum(map(bandwidth, simulated)) == pytest.approx(BURST + QUOTA * SECONDS, rel=0.01)


@pytest.mark.parametrize("longest_pause", [0.2, 1.0])
def test_late_consumers_keep_their_share(longest_pause):
    chance = random.Random(1)
    simulated = simulate(fixed(ANSWER), thinks=lambda: chance.random() * longest_pause)
    full, empty = counts(simulated)
    assert empty <= 2 * full
    assert jain([bandwidth(each) for each in simulated]) >= 0.95


def test_throttled_consumers_get_different_times():
    simulated = simulate(fixed(ANSWER), seconds=5.0)
    ends = Counter(round((when - START) * 1000) + throttle_ms for each in simulated for when, throttle_ms in each.empty)
    assert len(ends) >= CONSUMERS - 1
    assert max(ends.values()) == 1


def test_few_throttled_fetches_reach_the_broker():
    """In a fetch session a throttled Fetch also reaches the broker, which reads a batch for it."""
    simulation = Consumers(limits(fetch=QUOTA))
    simulated = [simulation.add(fixed(ANSWER), session=(0, 0)) for _ in range(CONSUMERS)]
    simulation.run(SECONDS)
    full, _ = counts(simulated)
    assert full <= len(simulation.forwarded) <= 3 * full


@pytest.mark.parametrize("polite", [True, False])
def test_brokers_send_at_most_twice_the_quota(polite):
    """Twenty consumers wait longer than a reported turn, so several of their Fetches come in debt."""
    simulation = Consumers(limits(fetch=QUOTA))
    answer, begins = full_answer(5_000_000), START + 1.0
    simulated = [
        simulation.add(
            lambda _: NOTHING if simulation.now < begins else answer, polite=polite, session=(7, 3), thinks=lambda: 0.2
        )
        for _ in range(20)
    ]
    simulation.run(300.0)
    got = sum(map(bandwidth, simulated))
    assert got >= 0.97 * QUOTA * 300.0
    assert simulation.brokers_bytes <= 2 * (BURST + QUOTA * 300.0) + 2 * len(answer)
    assert jain([bandwidth(each) for each in simulated]) >= 0.95


@pytest.mark.parametrize("idle", [0, 3, 49])
def test_idle_consumers_slow_nobody_down(idle):
    simulation = Consumers(limits(fetch=QUOTA))
    busy = simulation.add(batched(16_000))
    for _ in range(idle):
        simulation.add(lambda _: None)
    simulation.run(75.0)
    assert bandwidth(busy, since=15.0) >= 0.997 * QUOTA * 60.0


def test_single_consumer_flows_evenly():
    (consumer,) = simulate(batched(16_000), consumers=1)
    settled = [when for when, _ in consumer.full if when >= START + 12.0]
    assert max(later - earlier for earlier, later in pairwise(settled)) < 0.06
    assert not consumer.empty


def test_gone_consumers_delay_nobody():
    """Most of the consumers stop while they wait for their turns."""
    simulation = Consumers(limits(fetch=QUOTA))
    staying = [simulation.add(fixed(ANSWER)) for _ in range(5)]
    left = [True]
    for _ in range(45):
        simulation.add(lambda _: ANSWER if left else None, thinks=lambda: 0.0 if left else 1e6)
    simulation.run(15.0)
    left.clear()
    simulation.run(20.0)
    last = [bandwidth(each, since=25.0) for each in staying]
    assert sum(last) >= 0.99 * QUOTA * 10.0
    assert jain(last) >= 0.95


def test_window_with_one_consumer_asks_for_capacity():
    sizes = []

    def topic(max_bytes):
        sizes.append(max_bytes)
        return ANSWER

    simulate(topic, consumers=1, algorithm="window")
    assert {each // 100_000 for each in sizes} == {BURST // 100_000}


# Members of a group, each with a client-id of its own.


def simulate_group(*own: float | None, quota: int = QUOTA):
    """A consumer for each member, with its own quota in bytes per second (None: unlimited)."""
    jobs = Group("jobs", (GroupRule(client_id="job-*"),), {"consumer_byte_rate": quota})
    rows = [
        EntityQuota(ClientQuotaEntity(None, f"job-{number}"), {"consumer_byte_rate": limit})
        for number, limit in enumerate(own)
        if limit is not None
    ]
    simulation = Consumers(QuotaSettings((*rows, jobs.quota), groups=(jobs,)))
    started = [simulation.add(fixed(ANSWER), client_id=f"job-{number}") for number in range(len(own))]
    simulation.run(SECONDS)
    return started


def test_members_of_a_group_share_evenly():
    simulated = simulate_group(*[None] * 20)
    full, empty = counts(simulated)
    assert empty <= 2 * full
    assert jain([bandwidth(each) for each in simulated]) >= 0.95
    assert sum(map(bandwidth, simulated)) == pytest.approx(BURST + QUOTA * SECONDS, rel=0.03)


def test_member_keeps_its_own_quota_in_a_group():
    simulated = simulate_group(50_000, None, None, None)
    small, *others = map(bandwidth, simulated)
    assert small <= 10 * 50_000 + SECONDS * 50_000 + 100_000
    assert small >= 0.9 * SECONDS * 50_000
    assert jain(others) >= 0.95
    assert small + sum(others) == pytest.approx(BURST + QUOTA * SECONDS, rel=0.03)
