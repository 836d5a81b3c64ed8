"""Idle buckets that are dropped before their hour is over, because half of the places are taken."""

from itertools import pairwise

import pytest

from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, OTHER, ClientQuotaEntity, EntityQuota
from gateway.quotas.idle_buckets import NAMED_IDLE_SECONDS
from gateway.quotas.kind_buckets import BUCKET_IDLE_SECONDS
from gateway.quotas.labels import STEP_BUCKETS
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once
from tests.gateway.quotas.engines import bucket_of, rows_of

START = 1_000.0
QUOTA = EntityQuota(ClientQuotaEntity(None, DEFAULT), {"producer_byte_rate": 1_000.0})


def engine(places, *, names=0):
    """An engine for so many buckets of a kind, so many of which have a name in metrics."""
    return QuotaEngine(QuotaSettings((QUOTA,)), START, max_buckets=places, max_labelled=names)


def visit(subject, numbers, now=START, *, amount=100):
    """Let clients connect, use the quota and leave. A tick notes use of its second as if it came at its end."""
    for number in numbers:
        bucket = bucket_of(subject, "produce", "", f"client-{number}", now)
        bucket.charge(amount, now)
        subject.release(bucket, now)


def left(subject):
    """The numbers of the clients with a bucket."""
    return [int(bucket.resolution.tags.client_id.removeprefix("client-")) for bucket in subject.buckets()]


@pytest.mark.parametrize(
    ("places", "clients", "stay"),
    [(8, 3, 3), (8, 4, 3), (8, 8, 3), (7, 4, 3), (2, 1, 0), (1, 1, 0), (640, 319, 319), (640, 320, 309), (640, 640, 309)],
)
def test_idle_buckets_beyond_the_half_are_dropped(places, clients, stay):
    subject = engine(places)
    visit(subject, range(clients))
    subject.tick(START)
    assert len(left(subject)) == clients, "they were used within the last second"
    subject.tick(START + 1.0)
    assert len(left(subject)) == stay
    subject.tick(START + BUCKET_IDLE_SECONDS)
    assert left(subject) == []


def test_least_recently_used_buckets_are_dropped():
    subject = engine(20)
    for number in range(15):
        visit(subject, [number], START + number, amount=0)
    visit(subject, [2, 0], START + 20.0, amount=0)
    subject.tick(START + 30.0)
    assert left(subject) == [0, 2, *range(8, 15)]


def test_buckets_that_clients_need_are_not_dropped():
    """One has a connection, one a debt."""
    subject = engine(8)
    held = bucket_of(subject, "produce", "", "client-0", START)
    visit(subject, [1], amount=40_000)
    visit(subject, range(2, 8), START + 1.0)
    for second in (1.0, 2.0, 3.0):
        subject.tick(START + second)
    assert left(subject) == [0, 1, 7]
    assert held.connections == 1


@pytest.mark.parametrize(
    ("places", "held", "second", "stay"),
    [
        (20, 6, 110.0, [0, 1, 2]),
        (20, 6, 125.0, [0, 1, 2]),
        (20, 12, 110.0, [0, 1, 2]),
        (20, 12, NAMED_IDLE_SECONDS, [1, 2]),
        (15, 12, 110.0, []),
        (15, 6, 110.0, [2]),
    ],
    ids=["a few are left", "older ones have a name", "half full", "counts are old", "full of connections", "full"],
)
def test_buckets_without_a_name_are_dropped_first(places, held, second, stay):
    """Those with a name stay until a scrape has seen their counts, unless all places are taken."""
    subject = engine(places, names=3)
    for number in range(3):
        visit(subject, [number], START + number, amount=0)
    for number in range(3, 3 + held):
        bucket_of(subject, "produce", "", f"client-{number}", START)
    visit(subject, range(3 + held, 15), START + 100.0, amount=0)
    subject.tick(START + second)
    assert [number for number in left(subject) if number < 3] == stay


def test_further_client_ids_find_room_beside_idle_buckets():
    subject = engine(8)
    for number in range(4):
        (bucket,) = subject.acquire_path("produce", "", f"client-{number}", START, renamed=True)
        subject.release(bucket, START)
    (shared,) = subject.acquire_path("produce", "", "client-4", START, renamed=True)
    assert shared.resolution.tags.overflow
    subject.tick(START + 1.0)
    assert subject.has_room(shared, "", renamed=True)


def test_bucket_in_use_again_within_a_tick_stays():
    subject = engine(2 * STEP_BUCKETS)
    visit(subject, range(2 * STEP_BUCKETS))
    subject.tick(START)
    ticking = subject.tick_in_steps(START + 2.0)
    next(ticking)
    next(ticking)
    visit(subject, range(4), START + 2.0)
    at_once(ticking)
    assert left(subject) == [0, 1, 2, 3, *range(21, 32)]
    (other,) = rows_of(subject, START + 2.0)
    assert other.amount_total == 100 * (2 * STEP_BUCKETS + 4)


def test_dropped_buckets_count_once_in_the_row_of_the_others():
    subject = engine(64)
    found = []
    for second in range(4):
        visit(subject, range(16 * second, 16 * second + 50), START + 3.0 * second)
        subject.tick(START + 3.0 * second + 2.0)
        found += [(row.client_id, row.amount_total) for row in rows_of(subject, START)]
    assert found == [(OTHER, 100 * 50 * visits) for visits in range(1, 5)]


def test_buckets_are_dropped_in_steps():
    subject = engine(1_000)
    visit(subject, range(1_000), amount=0)
    sizes = [len(left(subject)) for _ in subject.tick_in_steps(START + 1.0)]
    assert sizes[-1] == 1_000 // 2 - 1 - 1_000 // 64
    assert max(before - after for before, after in pairwise(sizes)) == STEP_BUCKETS
