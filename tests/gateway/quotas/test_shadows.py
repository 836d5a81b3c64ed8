"""Shadow limits in the engine: measured beside the real ones, as if their clients waited."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota, Source, Tags
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.recent_use import entity_uses, restore_entity
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.shadows import EngineWithShadows, ShadowEngine, ShadowTable
from gateway.steps import at_once
from tests.gateway.quotas.engines import rows_of
from tests.gateway.quotas.grouped import grouped

START = 5_000.0
RATE = "producer_byte_rate"
JOBS = GroupRule(client_id="job-*")


def row(user: object = None, client_id: object = None, *, shadow: float | None = None, real: float | None = None, **rest):
    limits = {} if real is None else {RATE: real}
    return EntityQuota(ClientQuotaEntity(user, client_id), limits, shadow={} if shadow is None else {RATE: shadow}, **rest)


def engine(*rows: EntityQuota, groups: tuple[Group, ...] = (), shared: bool = False, **rest) -> EngineWithShadows:
    settings = grouped(groups, *rows, **rest)
    return EngineWithShadows(settings, START, shared=shared)


def path(
    subject: QuotaEngine, user: str = "alice", client_id: str = "c", kind: str = "produce"
) -> list[tuple[Tags, float | None]]:
    buckets = subject.acquire_path(kind, user, client_id, START)
    return [(bucket.resolution.tags, bucket.resolution.limit) for bucket in buckets]


def test_change_of_one_quota_reads_no_rows_again() -> None:
    rows = [row("alice", shadow=10.0), row("bob", real=20.0)]
    before = ShadowTable(rows, {})
    after = before.followed_by(rows, {ClientQuotaEntity("bob"): {RATE: 30.0}}).after
    assert after._shadows is before._shadows, "the rows were read again"


# The precedence of shadow limits.


def test_shadow_limit_is_behind_the_real_one() -> None:
    assert path(engine(row("alice", shadow=50, real=100))) == [(Tags("alice", None), 100), (Tags("alice", None), 50)]


def test_client_without_shadow_has_its_own_bucket_only() -> None:
    assert path(engine(row("alice", shadow=50)), "bob") == [(Tags(None, "c"), None)]


def test_limited_path_with_a_shadow_begins_with_own_bucket() -> None:
    subject = engine(row("alice", shadow=50))
    assert [bucket.meter is not None for bucket in subject.acquire_path("produce", "alice", "c", START, limited=True)] == [
        False,
        True,
    ]
    assert subject.acquire_path("fetch", "alice", "c", START, limited=True) == ()


def test_more_specific_real_limit_overrides_default_shadow() -> None:
    subject = engine(row(DEFAULT, shadow=50), row("alice", real=100))
    assert path(subject) == [(Tags("alice", None), 100)]
    assert path(subject, "bob") == [(Tags(None, "c"), None), (Tags("bob", None), 50)]


def test_shadow_overrides_less_specific_real_limit() -> None:
    subject = engine(row(DEFAULT, real=100), row("alice", "c", shadow=50))
    assert path(subject) == [(Tags("alice", None), 100), (Tags("alice", "c"), 50)]


def test_exemption_holds_for_shadow_of_the_default() -> None:
    subject = engine(row(DEFAULT, shadow=50), row("alice", exempt=True), groups=(Group("jobs", (JOBS,), shadow={RATE: 70}),))
    assert path(subject, client_id="job-1") == [(Tags("alice", None), None)]


def test_exempt_entity_can_have_a_shadow_of_its_own() -> None:
    assert path(engine(row("alice", exempt=True, shadow=50))) == [(Tags("alice", None), None), (Tags("alice", None), 50)]


def test_shadow_stands_beside_the_apis_limit() -> None:
    subject = engine(row("alice", shadow=50), dynamic={ClientQuotaEntity("alice"): {RATE: 80.0}})
    assert [limit for _, limit in path(subject)] == [80, 50]


def test_member_has_shadows_of_its_own_and_of_its_group() -> None:
    group = Group("jobs", (JOBS,), {RATE: 100}, shadow={RATE: 70})
    of_group = Tags(None, None, group="jobs")
    expected = [(Tags(None, "job-1"), None), (of_group, 100), (Tags("alice", None), 50), (of_group, 70)]
    assert path(engine(row("alice", shadow=50), groups=(group,)), client_id="job-1") == expected


def test_member_has_the_shadow_of_the_group_above() -> None:
    above, leaf = Group("all", (), shadow={RATE: 90}), Group("jobs", (JOBS,), shadow={RATE: 70}, parent="all")
    limits = [(tags.group, limit) for tags, limit in path(engine(groups=(above, leaf)), client_id="job-1")]
    assert limits == [(None, None), ("jobs", 70), ("all", 90)]


def test_requests_are_charged_while_a_shadow_counts_them() -> None:
    subject = engine(EntityQuota(ClientQuotaEntity("alice"), shadow={"request_rate": 5}))
    assert subject.charges_requests
    subject.apply(QuotaSettings(), START)
    assert not subject.charges_requests


# The figures.


def through(bucket: Bucket, requests: list[tuple[float, int]], tick: Callable[[float], None], *, waits: bool) -> float:
    now, ticked = START, START
    for gap, size in requests:
        now += gap
        while ticked + 1.0 <= now:
            ticked += 1.0
            tick(ticked)
        delay, enforced = bucket.charge(size, now)
        assert enforced is (waits and delay > 0.0)
        now += delay if waits else 0.0
    return now


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
@pytest.mark.parametrize("over", [1.1, 3.0, 50.0])
def test_figures_are_those_of_a_client_that_waits(algorithm: str, over: float) -> None:
    """The same requests with the same pauses: a real limit adds its throttle times, a shadow limit only counts them."""
    random = Random(7)
    sizes = [random.randint(10, 500) for _ in range(1_500)]
    requests = [(random.expovariate(1.0) * size / (over * 1_000), size) for size in sizes]
    real = QuotaEngine(QuotaSettings((row("alice", real=1_000),), algorithm=algorithm), START)
    (waited,) = real.acquire_path("produce", "alice", "c", START)
    subject = engine(row("alice", shadow=1_000), algorithm=algorithm)
    _, counted = subject.acquire_path("produce", "alice", "c", START)
    later = through(waited, requests, real.tick, waits=True)
    end = through(counted, requests, subject.tick, waits=False)
    assert counted.throttled_total == counted.unenforced_total == waited.throttled_total > 0
    assert counted.throttle_seconds_total == pytest.approx(waited.throttle_seconds_total)
    assert later - end == pytest.approx(counted.throttle_seconds_total)


def test_real_limit_is_enforced_beside_its_shadow() -> None:
    real, shadow = engine(row("alice", shadow=50, real=100)).acquire_path("produce", "alice", "c", START)
    assert real.charge(1_200, START) == (pytest.approx(2.0), True)
    assert shadow.charge(1_200, START) == (pytest.approx(14.0), False)
    assert shadow.throttle_left(START) == 0.0


def test_rows_of_shadows_are_marked_and_totals_leave_them_out() -> None:
    subject = engine(row("alice", shadow=50, real=100))
    for bucket in subject.acquire_path("produce", "alice", "c", START):
        bucket.charge(600, START)
    real, shadow = rows_of(subject, START)
    assert (real.shadow, real.throttled_total, real.limit) == (False, 0, 100)
    assert (shadow.shadow, shadow.throttled_total, shadow.unenforced_total, shadow.limit) == (True, 1, 1, 50)
    assert shadow.used_ratio > 1.0
    assert all(sum(total.counts) == 0 for total in subject.throttle_totals())
    assert [each.shadow for each in at_once(subject.active_rows(START, 10.0))] == [False]


def test_bucket_of_another_clients_shadow_is_not_listed_as_real() -> None:
    subject = engine(row("alice", shadow=50))
    subject.acquire_path("produce", "alice", "c", START)
    assert [bucket.resolution.limit for bucket in subject.buckets()] == [None]
    assert [bucket.resolution.limit for bucket in subject.shadows.buckets()] == [50]


# Changes.


def test_reload_keeps_the_use_of_a_shadow() -> None:
    subject = engine(row("alice", shadow=50))
    _, bucket = subject.acquire_path("produce", "alice", "c", START)
    bucket.charge(300, START)
    subject.apply(QuotaSettings((row("alice", shadow=40),)), START)
    assert bucket.meter is not None
    assert bucket.meter.tokens(START) == 200
    subject.apply(QuotaSettings(), START)
    assert bucket.meter is None
    assert [row.shadow for row in rows_of(subject, START)] == [False]


def test_shadow_that_becomes_real_is_no_shadow_any_more() -> None:
    subject = engine(row("alice", shadow=50))
    _, shadow = subject.acquire_path("produce", "alice", "c", START)
    subject.apply(QuotaSettings((row("alice", real=50),)), START)
    assert shadow.resolution.limit is None
    assert path(subject) == [(Tags("alice", None), 50)]


def test_enforce_false_changes_nothing_for_shadows() -> None:
    subject = engine(row("alice", shadow=50))
    subject.apply(replace(subject.settings, enforce=True), START)
    _, shadow = subject.acquire_path("produce", "alice", "c", START)
    assert shadow.charge(600, START)[1] is False


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_use_of_a_shadow_outlives_a_restart(algorithm: str) -> None:
    before = engine(row("alice", shadow=50, real=100), algorithm=algorithm)
    for bucket in before.acquire_path("produce", "alice", "c", START):
        bucket.charge(700, START)
    saved = [use for some in (before, before.shadows) for use in entity_uses(some, some.buckets(), START)]
    assert [use.kind for use in saved] == ["produce", "shadow_produce"]
    after = engine(row("alice", shadow=50, real=100), algorithm=algorithm)
    for use in saved:
        assert restore_entity(after.shadows if use.kind in after.shadows.kinds else after, use, START)
    for one, other in zip(*(some.acquire_path("produce", "alice", "c", START) for some in (before, after)), strict=True):
        assert one.meter is not None
        assert other.meter is not None
        assert one.meter.delay(START, 10.0) == pytest.approx(other.meter.delay(START, 10.0))
        assert one.meter.tokens(START) == other.meter.tokens(START)


def test_forgotten_shadows_are_reported_apart() -> None:
    real: list[Bucket] = []
    shadows: list[Bucket] = []
    settings = QuotaSettings((row("alice", shadow=50),))
    subject = EngineWithShadows(settings, START, on_forgotten=real.append, on_shadow_forgotten=shadows.append)
    for bucket in subject.acquire_path("produce", "alice", "c", START):
        subject.release(bucket, START)
    subject.tick(START + 10_000.0)
    assert ([len(real), len(shadows)]) == [1, 1]


def test_shadow_limits_come_from_the_file_and_are_compared():
    row = EntityQuota(ClientQuotaEntity(None, "etl"), {}, shadow={"producer_byte_rate": 5.0})
    table, without = ShadowTable([row]), ShadowTable([])
    resolution = table.resolve("producer_byte_rate", "", "etl")
    assert (resolution.limit, resolution.source) == (5.0, Source.FILE)
    for old, new in ((table, without), (without, table)):
        assert new.changed("producer_byte_rate", old) == {row.entity}
        assert new.changed("consumer_byte_rate", old) == set()


def test_both_engines_find_the_group_of_a_client_once():
    subject = engine(row("alice", shadow=50, real=100))
    assert subject.shadows.groups is subject.groups
    before = subject.groups
    subject.apply(replace(subject.settings, groups=(Group("jobs", (GroupRule(client_id="job-*"),)),)), START)
    assert before is not subject.groups is subject.shadows.groups


def test_shadow_ceilings_are_not_divided():
    groups = (
        Group("all", (), shadow={"producer_byte_rate": 1_000.0}),
        Group("jobs", (GroupRule(client_id="job-*"),), shadow={"producer_byte_rate": 500.0}, parent="all"),
    )
    engine = ShadowEngine(grouped(groups), 0.0)
    assert not engine.group_buckets.active
    path = engine.acquire_path("produce", "", "job-1", 0.0)
    assert [bucket.resolution.limit for bucket in path] == [500.0, 1_000.0]


def test_unchanged_groups_are_made_once() -> None:
    settings = QuotaSettings(groups=(Group("above", ()), Group("below", (GroupRule(user="u*"),), parent="above")))
    engine = EngineWithShadows(settings, 0.0)
    before = engine.shadows.settings.groups
    assert [group.parent for group in before] == [None, None]
    engine.apply(replace(settings, enforce=False), 1.0)
    assert engine.shadows.settings.groups is before
    engine.apply(replace(settings, groups=settings.groups[:1]), 2.0)
    assert [group.name for group in engine.shadows.settings.groups] == ["above"]
