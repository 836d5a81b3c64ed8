"""Clients whose names are shown, and those that share the label `<other>`."""

import pytest

from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota, short_name
from gateway.quotas.labels import STEP_BUCKETS, LabelSlots
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once
from tests.gateway.quotas.engines import bucket_of, rows_of


def engine_of(*clients: str, **bounds: int) -> QuotaEngine:
    """An engine with a quota for each of `clients` and a default quota."""
    names = (DEFAULT, *clients)
    quotas = tuple(EntityQuota(ClientQuotaEntity(client_id=name), {"producer_byte_rate": 1_000.0}) for name in names)
    return QuotaEngine(QuotaSettings(quotas), 0.0, **bounds)


def visit(engine: QuotaEngine, names: list[str], now: float) -> None:
    """Let each client acquire a bucket, charge 100 bytes and leave."""
    for name in names:
        bucket = bucket_of(engine, "produce", "u", name, now)
        bucket.charge(100, now)
        engine.release(bucket, now)


def shown(engine: QuotaEngine, now: float) -> set[str]:
    """Return the client names in the snapshot."""
    return {row.client_id for row in rows_of(engine, now)}


def test_label_slots_are_handed_out_slowly():
    """Names that change with every scrape do not create new series with every scrape."""
    engine = engine_of("known", max_buckets=1_000, max_labelled=100)
    seen: set[str] = set()
    new = []
    now = 0.0
    for scrape in range(5):
        visit(engine, [f"{scrape}-{number}" for number in range(600)], now)
        names = shown(engine, now)
        new.append(len(names - seen))
        seen |= names
        for _ in range(15):
            now += 1.0
            engine.tick(now)
    assert new[0] == 101
    assert sum(new[1:]) < 5
    visit(engine, ["known"], now)
    assert "known" in shown(engine, now)


def test_active_rows_are_read_in_steps():
    """The work of one step has a limit, also if thousands of clients are throttled at the same time."""
    engine = engine_of(max_labelled=100)
    visit(engine, [str(number) for number in range(100)], 0.0)
    assert len(at_once(engine.active_rows(1.0, 4.0))) == 100
    assert sum(1 for _ in engine.active_rows(1.0, 4.0)) >= 100 // STEP_BUCKETS


def test_configured_entity_gets_a_label_first():
    engine = engine_of("known", max_labelled=3)
    visit(engine, ["a", "b", "c", "d", "known"], 0.0)
    rows = {row.client_id: row.amount_total for row in rows_of(engine, 0.0)}
    assert rows.keys() == {"known", "b", "c", "<other>"}
    visit(engine, ["a", "d"], 1.0)
    rows = {row.client_id: row.amount_total for row in rows_of(engine, 1.0)}
    assert rows["<other>"] == 300, "bytes already shown under a name are not counted again"


def test_client_that_stays_gets_a_free_label():
    """Earlier bytes stay in `<other>`, so that no counter falls."""
    engine = engine_of(max_labelled=2)
    visit(engine, ["a", "b"], 0.0)
    stays = bucket_of(engine, "produce", "u", "stays", 0.0)
    stays.charge(500, 0.0)
    assert shown(engine, 0.0) == {"a", "b", "<other>"}
    for hour in range(1, 3):
        engine.tick(hour * 4_000.0)
    stays.charge(50, 8_000.0)
    assert {row.client_id: row.amount_total for row in rows_of(engine, 8_000.0)} == {"stays": 50, "<other>": 500}


def unnamed(*clients: str) -> list[Bucket]:
    """Return a bucket without a slot for each of `clients`."""
    engine = engine_of(max_labelled=0)
    return [bucket_of(engine, "produce", "u", name, 0.0) for name in clients]


@pytest.mark.parametrize(("later", "paid"), [(10.0, True), (3_600.0, False), (3_601.0, True)])
def test_client_that_comes_back_keeps_its_name(later, paid):
    """Within an hour its name is no new one. Of one new name an hour, it then leaves the next one for others."""
    a, b = unnamed("a", "b")
    slots = LabelSlots(1, 0.0)
    assert slots.grant(a, 0.0)
    slots.drop(a, 0.0)
    assert slots.grant(a, later)
    slots.drop(a, later)
    assert slots.grant(b, later) is not paid


def test_as_many_names_are_remembered_as_there_are_slots():
    a, b, c, d = unnamed("a", "b", "c", "d")
    slots = LabelSlots(2, 0.0)
    for pair, begin, end in (((a, b), 0.0, 3_600.0), ((c, d), 3_600.0, 3_600.0)):
        assert [slots.grant(bucket, begin) for bucket in pair] == [True, True]
        for bucket in pair:
            slots.drop(bucket, end)
    assert [slots.grant(bucket, 3_600.0) for bucket in (a, b, c, d)] == [False, False, True, True]


def test_returning_clients_get_no_more_slots_than_there_are():
    a, b, c = unnamed("a", "b", "c")
    slots = LabelSlots(2, 0.0)
    assert [slots.grant(bucket, 0.0) for bucket in (a, b)] == [True, True]
    slots.drop(a, 3_600.0)
    assert [slots.grant(bucket, 3_600.0) for bucket in (c, a)] == [True, False]


def test_tick_of_many_entities_comes_in_steps():
    engine = engine_of(max_buckets=2_000)
    names = [f"client-{number}" for number in range(2_000)]
    buckets = [bucket_of(engine, "produce", name, name, 0.0) for name in names]
    assert engine.overflowed == 0
    for bucket in buckets:
        bucket.charge(100, 0.5)
    marked = []
    for _ in engine.tick_in_steps(1.0):
        marked.append(sum(bucket.marks[bucket.policy.newest] > 0 for bucket in buckets))
        visit(engine, [f"new-{len(marked)}"], 1.0)  # clients join and leave between the steps
    growth = [after - before for before, after in zip([0, *marked], marked, strict=False)]
    assert [each for each in growth if each] == [STEP_BUCKETS] * 125
    (other,) = [row for row in rows_of(engine, 1.0) if row.client_id == "<other>"]
    assert other.amount_total >= 1_000 * 100
    assert other.rate == pytest.approx(1_000 * 10)


@pytest.mark.parametrize("name", ["", "a" * 255, "a" * 160 + "..." + "b" * 20, "é" * 200])
def test_usual_names_stay_as_they_are(name):
    assert short_name(name) == name
