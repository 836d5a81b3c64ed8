"""The use of thousands of accounts is counted and chosen in small steps."""

import random
from collections import Counter
from itertools import chain

import pytest

from gateway.features.sharing.own_uses import OwnUses
from gateway.features.sharing.shared_usage import PIECE, most_rows
from gateway.features.topic_quotas.topic_meters import RATES, AppendedBytes
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota, Tags
from gateway.quotas.kind_buckets import BUCKET_IDLE_SECONDS
from gateway.quotas.meter import Window
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.shadows import EngineWithShadows
from gateway.steps import at_once

MEMBERS = 200
KEY = "producer_byte_rate"


def account(appended=0):
    made = AppendedBytes(RATES["window"](Window(), 0.0), 1_000.0)
    made.appended_bytes = appended
    return made


def counted(amounts):
    uses = OwnUses()
    changed = [(("topic", f"t{number}"), account(amount)) for number, amount in enumerate(amounts)]
    at_once(uses.count(changed, 5.0, lambda: 0.0))
    return uses


def test_accounts_are_visited_a_piece_in_each_step():
    visited = []

    def changed():
        for number in range(3 * PIECE):
            visited.append(number)
            yield ("topic", f"t{number}"), account()

    steps = OwnUses().count(changed(), 5.0, lambda: 0.0)
    next(steps)
    assert len(visited) == PIECE


def test_each_step_without_a_change_is_a_step():
    steps = OwnUses().count(iter([None] * 3 + [(("topic", "t"), account(1))]), 5.0, lambda: 0.0)
    assert [next(steps, "end") for _ in range(4)] == [None, None, None, "end"]


@pytest.mark.parametrize("seed", range(20))
def test_use_between_the_steps_counts_once(seed):
    """Buckets are charged, made, and dropped after all of their use was counted, at any moment of the walk."""
    rng = random.Random(seed)
    row = EntityQuota(ClientQuotaEntity(None, DEFAULT), {KEY: 1e9}, shadow={KEY: 1e8})
    engine = EngineWithShadows(QuotaSettings((row,)), 0.0, max_buckets=300, shared=True)
    uses, charged, now = OwnUses(), Counter(), 0.0

    def count():
        return uses.count(chain(engine.changed(), engine.shadows.changed()), 5.0, lambda: now)

    def use():
        name, amount = f"client-{rng.randrange(200)}", rng.randrange(1_000)
        for bucket in engine.acquire_path("produce", "", name, now):
            bucket.charge(amount, now)
            engine.release(bucket, now)
        charged[name] += amount

    dropped = 0
    for _ in range(10):
        for _ in range(rng.randrange(100)):
            use()
        for _ in count():
            if rng.random() < 0.5:
                use()
            if rng.random() < 0.1:
                before = len(list(engine.buckets()))
                engine.tick(now)
                dropped += before - len(list(engine.buckets()))
        at_once(count())
        now += 2.0 * BUCKET_IDLE_SECONDS
    assert dropped > 0
    for kind in ("produce", "shadow_produce"):
        assert {name: uses.get((kind, Tags(None, name))).flow.total for name in charged} == charged


def test_message_has_the_most_urgent_uses_first():
    amounts = list(range(100, 600))
    random.Random(1).shuffle(amounts)
    chosen, left_out = at_once(counted(amounts).chosen(MEMBERS, 1, 0.0))
    assert [use.total for use in chosen] == sorted(amounts, reverse=True)[: most_rows(MEMBERS)]
    assert left_out == 500 - most_rows(MEMBERS)


def test_uses_without_a_meter_to_settle_are_not_listed():
    assert at_once(counted([100]).since(0.0)) == []


def test_use_is_unheard_until_the_peer_has_the_message_with_it():
    """Each message takes longer than an interval, so several are on their way."""
    uses, use = OwnUses(), account()
    for sequence in range(1, 7):
        use.appended_bytes += 100
        at_once(uses.count([(("topic", "t"), use)], 5.0, lambda: 0.0))
        at_once(uses.chosen(2, sequence, 0.0))
    assert [uses.unheard(("topic", "t"), use, heard) for heard in (6, 5, 3, 2)] == [0, 100, 300, 400]
    assert uses.unheard(("topic", "t"), use, 0) == 400, "older totals are not kept"


def test_message_that_failed_has_been_heard_by_nobody():
    uses, use = OwnUses(), account()
    for sequence in (1, 2):
        use.appended_bytes += 100
        at_once(uses.count([(("topic", "t"), use)], 5.0, lambda: 0.0))
        at_once(uses.chosen(2, sequence, 0.0))
    uses.not_published()
    assert [uses.unheard(("topic", "t"), use, heard) for heard in (1, 0)] == [100, 200]
