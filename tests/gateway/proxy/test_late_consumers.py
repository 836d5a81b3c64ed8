"""Consumers of one quota that come late to their turns, or work long on their records.

A fair queue would serve each of them once while all are served.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gateway.proxy.consumers import OUTSIDE, Consumers, batched, fixed, full_answer
from tests.gateway.proxy.crowd import longest_gap
from tests.gateway.proxy.transcript import START, limits

QUOTA = 200_000
LONG = 1_000.0


def longest_wait(consumer):
    """In seconds, after the burst and its debt."""
    return longest_gap([when for when, _ in consumer.full], START + LONG, START + 100.0)


@pytest.mark.parametrize("late", [5.0, 10.0])
def test_consumer_gains_nothing_by_coming_late(late):
    simulation = Consumers(limits(fetch=QUOTA))
    honest = [simulation.add(batched(1_000_000)) for _ in range(40)]
    cheat = simulation.add(batched(1_000_000), thinks=lambda: late)
    simulation.run(2.0 * LONG)
    assert len(cheat.full) <= max(len(each.full) for each in honest)


@pytest.mark.parametrize("seconds", [5.0, 20.0])
def test_consumers_that_work_long_leave_others_their_turns(seconds):
    simulation, chance = Consumers(limits(fetch=QUOTA)), random.Random(1)
    busy = [simulation.add(batched(200_000)) for _ in range(20)]
    slow = [simulation.add(batched(200_000), works=lambda: seconds * (0.5 + chance.random())) for _ in range(20)]
    simulation.run(LONG)
    fair = 40 * 200_000 / QUOTA
    assert max(map(longest_wait, busy)) <= 1.1 * fair + 0.5 * seconds
    assert max(map(longest_wait, slow)) <= 1.1 * fair + 1.5 * seconds


@pytest.mark.parametrize("late", [0.02, 0.1, 1.0])
def test_small_answers_are_not_overtaken(late):
    """The turn of a small answer lasts for 5 ms, and its request comes later than that through the network."""
    simulation = Consumers(limits(fetch=QUOTA))
    busy = [simulation.add(batched(1_000_000)) for _ in range(5)]
    tails = [simulation.add(fixed(full_answer(1_000)), thinks=lambda: late) for _ in range(3)]
    simulation.run(LONG)
    assert max(map(longest_wait, [*busy, *tails])) <= 1.3 * 5 * 1_000_000 / QUOTA


@st.composite
def mixes(draw):
    """Consumers as (bytes of an answer or a batch, is it a batch, lateness, working time, session)."""
    size = st.sampled_from([200, 1_000, 20_000, 200_000, 1_000_000])
    late, works = st.sampled_from([0.0005, 0.02, 0.3, 2.0]), st.sampled_from([0.0, 0.0, 5.0])
    session = st.sampled_from([OUTSIDE, (7, 3)])
    return draw(st.lists(st.tuples(size, st.booleans(), late, works, session), min_size=2, max_size=10))


@settings(max_examples=30)
@given(mixes(), st.sampled_from([20_000, 200_000, 2_000_000]), st.integers(0, 1_000))
def test_no_mix_of_consumers_starves_one(mix, quota, seed):
    fair = max(sum(size for size, *_ in mix) / quota, 0.2)
    seconds = min(max(9.0 * fair, 60.0), 900.0)
    simulation, chance = Consumers(limits(fetch=quota)), random.Random(seed)
    found = [
        simulation.add(
            (batched if batches else lambda size: fixed(full_answer(size)))(size),
            starts=chance.random() / 3,
            round_trip=0.02,
            thinks=lambda late=late: late * (0.5 + chance.random()),
            works=lambda works=works: works,
            session=session,
        )
        for size, batches, late, works, session in mix
    ]
    simulation.run(seconds)
    begin, end = START + seconds * 2 / 3, START + seconds  # the first answers may leave a debt of several bursts
    for (_, _, late, works, _), consumer in zip(mix, found, strict=True):
        assert longest_gap([when for when, _ in consumer.full], end, begin) <= 3.0 * fair + works + 3.0 * late + 1.0
    used = sum(size for consumer in found for _, size in consumer.full)
    assert used <= 1.05 * quota * (seconds + 10.0) + 2 * sum(size for size, *_ in mix)
