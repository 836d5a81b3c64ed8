"""The place of a connection's first request in the queues of its buckets."""

import pytest

from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.queue_place import QueuePlace
from gateway.quotas.settings import QuotaSettings

START = 1_000.0
LIMIT = 1_000.0


def path_of(*debts):
    """The buckets of a client and of its group, with these debts in seconds."""
    rate = {"producer_byte_rate": LIMIT}
    rows = EntityQuota(ClientQuotaEntity("alice"), rate), EntityQuota(ClientQuotaEntity(group="g"), rate)
    engine = QuotaEngine(QuotaSettings(rows, groups=(Group("g", (GroupRule("alice"),)),)), START)
    path = engine.acquire_path("produce", "alice", "", START)
    for bucket, debt in zip(path, debts, strict=True):
        bucket.meter.charge(bucket.meter.capacity + debt * LIMIT, START)
    return path


def enter(place, path, now=START, *, arrives=False):
    assert place.enters("produce")
    return place.enter("produce", path, 100, now, arrives=arrives, units=0)


def waiting(path):
    return [bucket.first_requests.waiting for bucket in path]


def test_request_without_a_debt_passes_at_once():
    place, path = QueuePlace(), path_of(-1.0, -1.0)
    assert enter(place, path) is None
    assert (place.enters("produce"), place.enters("fetch"), place.queued) == (False, True, False)
    place.begin_anew()
    assert place.enters("produce")


def test_request_waits_for_each_bucket_in_turn():
    place, path = QueuePlace(), path_of(1.0, 3.0)
    assert enter(place, path) == (path[0], (pytest.approx(1.0), True))
    assert (place.queued, waiting(path)) == (True, [100, 0])
    assert enter(place, path, START + 1.0) == (path[1], (pytest.approx(2.0), True))
    assert waiting(path) == [0, 100]
    assert enter(place, path, START + 3.0) is None
    assert (place.queued, waiting(path)) == (False, [0, 0])


def test_arriving_request_keeps_its_place_in_the_last_queue():
    place, path = QueuePlace(), path_of(1.0, 3.0)
    enter(place, path, arrives=True)
    assert enter(place, path, START + 1.0, arrives=True) == (path[1], (pytest.approx(2.0), True))
    assert (waiting(path), place.queued, place.arrives_by) == ([0, 100], True, 0.0)
    assert enter(place, path, START + 3.0, arrives=True) is None
    assert (waiting(path), place.queued, place.arrives_by) == ([0, 100], False, START + 4.0)
    place.leave_queue()
    assert (waiting(path), place.arrives_by) == ([0, 0], 0.0)


@pytest.mark.parametrize("arrives", [False, True])
def test_turn_is_left_to_the_next_connection(arrives):
    place, path = QueuePlace(), path_of(1.0, -1.0)
    enter(place, path, arrives=arrives)
    if arrives:
        enter(place, path, START + 1.0, arrives=True)
    place.abandon(START + 1.0)
    assert waiting(path) == [0, 0]
    assert path[0].first_requests.turn(9.0, LIMIT, START + 1.0) == pytest.approx(START + 1.0)


def test_queue_of_another_kind_is_kept():
    place, path = QueuePlace(), path_of(1.0, -1.0)
    enter(place, path)
    place.leave_queue_of(("fetch",))
    assert place.queued
    place.leave_queue_of(("fetch", "produce"))
    assert (place.queued, waiting(path)) == (False, [0, 0])


def test_member_is_let_in_before_its_turn():
    place, path = QueuePlace(), path_of(5.0, -1.0)
    enter(place, path)
    place.let_in_at(START + 2.0)
    place.let_in_at(START + 3.0)
    assert enter(place, path, START + 2.0) is None
