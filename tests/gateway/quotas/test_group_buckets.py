"""Buckets of groups in the engine: members are charged to their own bucket and to the group's."""

from dataclasses import replace

import pytest

from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota, Tags
from gateway.quotas.groups import Group, GroupRule
from tests.gateway.quotas.engines import rows_of
from tests.gateway.quotas.grouped import grouped

START = 5_000.0
JOBS = Group("jobs", (GroupRule(client_id="job-*"),), {"producer_byte_rate": 1_000, "request_rate": 5})
ALICE = EntityQuota(ClientQuotaEntity("alice"), {"producer_byte_rate": 400})
TAGS = Tags(None, None, group="jobs")


def settings(*rows, groups=(JOBS,), **rest):
    return grouped(groups, *rows, **rest)


def engine(*rows, groups=(JOBS,), shared=False, **rest):
    return QuotaEngine(settings(*rows, groups=groups), START, shared=shared, **rest)


def tags(path):
    return [bucket.resolution.tags for bucket in path]


def test_members_own_bucket_is_before_the_groups():
    path = engine(ALICE).acquire_path("produce", "alice", "job-1", START)
    assert tags(path) == [Tags("alice", None), TAGS]
    assert [bucket.resolution.limit for bucket in path] == [400, 1_000]


def test_members_share_the_groups_bucket():
    subject = engine()
    first, second = (subject.acquire_path("produce", user, f"job-{user}", START) for user in ("a", "b"))
    assert first[0] is not second[0]
    assert first[1] is second[1]
    assert second[1].connections == 2


@pytest.mark.parametrize("kind", ["fetch", "controller_mutation"])
def test_group_without_limit_of_the_kind_has_no_bucket(kind):
    subject = engine()
    assert tags(subject.acquire_path(kind, "a", "job-1", START)) == [Tags(None, "job-1")]
    assert subject.acquire_path(kind, "a", "job-2", START, limited=True) == ()


def test_stranger_has_its_own_bucket_only():
    subject = engine()
    assert tags(subject.acquire_path("produce", "a", "jobless", START)) == [Tags(None, "jobless")]
    assert subject.acquire_path("request_rate", "a", "jobless", START, limited=True) == ()


def test_limited_path_of_a_member_measures_its_own_use():
    path = engine().acquire_path("request_rate", "a", "job-1", START, limited=True)
    assert [bucket.meter is not None for bucket in path] == [False, True]


def test_exempt_client_stays_out_of_the_groups_limit():
    exempt = EntityQuota(ClientQuotaEntity("alice"), exempt=True)
    assert tags(engine(exempt).acquire_path("produce", "alice", "job-1", START)) == [Tags("alice", None)]


def test_exemption_from_topics_keeps_the_groups_limit():
    exempt = EntityQuota(ClientQuotaEntity("alice"), exempt_from=("topics",))
    assert TAGS in tags(engine(exempt).acquire_path("produce", "alice", "job-1", START))


def test_api_limit_of_an_exempt_client_brings_the_group_back():
    """As for its own quota: the API's value of a key overrides the file's exemption from this key."""
    exempt = EntityQuota(ClientQuotaEntity("alice"), exempt=True)
    dynamic = {ClientQuotaEntity("alice"): {"producer_byte_rate": 100.0}}
    subject = QuotaEngine(settings(exempt, dynamic=dynamic), START)
    assert tags(subject.acquire_path("produce", "alice", "job-1", START)) == [Tags("alice", None), TAGS]
    assert tags(subject.acquire_path("request_rate", "alice", "job-1", START)) == [Tags("alice", None)]


def test_api_limit_of_a_group_overrides_the_files():
    dynamic = {ClientQuotaEntity(group="jobs"): {"producer_byte_rate": 50.0, "consumer_byte_rate": 70.0}}
    subject = QuotaEngine(settings(dynamic=dynamic), START)
    for kind, limit in (("produce", 50.0), ("fetch", 70.0)):
        assert subject.acquire_path(kind, "a", "job-1", START)[1].resolution.limit == limit


def test_changed_limit_keeps_the_groups_use():
    subject = engine()
    _, group = subject.acquire_path("produce", "a", "job-1", START)
    group.charge(13_000, START)
    subject.apply(settings(groups=(replace(JOBS, limits={"producer_byte_rate": 2_000}),)), START)
    assert group.resolution.limit == 2_000
    assert group.throttle_left(START) == pytest.approx(1.5)


def test_removed_group_limits_nobody():
    subject = engine()
    own, group = subject.acquire_path("produce", "a", "job-1", START)
    before = subject.generation
    subject.apply(settings(groups=()), START)
    assert subject.generation > before
    assert group.meter is None
    assert subject.acquire_path("produce", "a", "job-1", START) == (own,)


def test_reload_moves_members_to_another_group():
    subject = engine()
    subject.acquire_path("produce", "a", "job-1", START)
    subject.apply(settings(groups=(replace(JOBS, name="others"), JOBS)), START)
    assert tags(subject.acquire_path("produce", "a", "job-1", START))[1] == Tags(None, None, group="others")


def test_group_gets_its_own_bucket_in_a_full_engine():
    subject = engine(max_buckets=1)
    subject.acquire_path("produce", "a", "other", START)
    own, group = subject.acquire_path("produce", "a", "job-1", START)
    assert own.resolution.tags.overflow
    assert group.resolution.tags == TAGS


def test_peers_use_charges_the_group():
    subject = engine(shared=True, max_buckets=1)
    subject.acquire_path("produce", "a", "other", START)
    account = subject.peer_account("produce", TAGS, START)
    assert account is not None
    account.charge_others(13_000, START, no_debt=False)
    _, group = subject.acquire_path("produce", "a", "job-1", START)
    assert group is account
    assert group.throttle_left(START) == pytest.approx(3.0)
    assert subject.peer_account("produce", Tags(None, None, group="unknown"), START) is None


def test_row_of_a_group_has_its_name():
    subject = engine()
    subject.acquire_path("produce", "a", "job-1", START)
    (row,) = (row for row in rows_of(subject, START) if row.group)
    assert (row.kind, row.group, row.user, row.client_id, row.level, row.source) == (
        "produce", "jobs", "", "", "group=jobs", "file",
    )  # fmt: skip
