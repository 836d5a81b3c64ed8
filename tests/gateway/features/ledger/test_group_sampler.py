"""The rights of groups, by minute, and the use of their clients in the ledger."""

from gateway.events import GroupSample, from_line, to_line
from gateway.features.ledger.group_sampler import GroupSampler
from gateway.features.ledger.usage_sampler import UsageSampler
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.group_buckets import INTERVAL_SECONDS
from gateway.quotas.groups import Group, GroupRule
from gateway.steps import at_once
from tests.gateway.quotas.grouped import grouped

NOW = 1_000.0
MINUTE = 1_767_225_600.0
KEY = "producer_byte_rate"
MB = 1_000_000
ROOT = Group("all", (), {KEY: 1_000.0 * MB})
TEAM = Group("team", (), parent="all", guarantees={KEY: 600.0 * MB})
PAY = Group("pay", (GroupRule(user="pay-*"),), parent="team", guarantees={KEY: 500.0 * MB})
WEB = Group("web", (GroupRule(user="web"),), parent="team")
NIGHT = Group("night", (GroupRule(user="night"),), parent="all")
GROUPS = (ROOT, TEAM, PAY, WEB, NIGHT)
EACH_USER = EntityQuota(ClientQuotaEntity(DEFAULT), {KEY: 1_000.0 * MB})


def engine() -> QuotaEngine:
    return QuotaEngine(grouped(GROUPS, EACH_USER), NOW)


def charge(subject: QuotaEngine, user: str, amount: int, now: float = NOW) -> None:
    for bucket in subject.acquire_path("produce", user, "app", now):
        bucket.charge(amount, now)


def seconds(subject: QuotaEngine, sampler: GroupSampler, first: int, last: int) -> list[GroupSample]:
    """Divide five times a second and sample each second, as a gateway does."""
    found: list[GroupSample] = []
    groups = subject.group_buckets
    for second in range(first, last):
        for part in range(5):
            now = NOW + second + part * INTERVAL_SECONDS
            groups.divide(groups.measure(now), INTERVAL_SECONDS, now)
        subject.tick(NOW + second)
        found += sampler.take("weir-1", groups.rows(NOW + second), MINUTE + second)
    return found


def test_minute_has_the_rights_of_used_groups_and_their_siblings():
    subject, sampler = engine(), GroupSampler(MINUTE)
    charge(subject, "pay-1", 6_500 * MB)
    charge(subject, "web", 10)
    samples = seconds(subject, sampler, 0, 61)
    assert [(each.group, each.parent, each.guarantee / MB, each.entitlement / MB) for each in samples] == [
        ("all", None, 0.0, 1_000.0),
        ("team", "all", 600.0, 800.0),
        ("night", "all", 0.0, 200.0),
        ("pay", "team", 500.0, 650.0),
        ("web", "team", 0.0, 150.0),
    ]
    assert {each.time_ms for each in samples} == {1_767_225_600_000}
    waited = {each.group: each.waited_seconds for each in samples}
    assert 1 <= waited.pop("pay") <= 10, "its debt is paid at 1 000 MB/s or less"
    assert set(waited.values()) == {0}
    assert from_line(to_line(samples[0])) == samples[0]


def test_minutes_without_use_have_no_sample():
    subject, sampler = engine(), GroupSampler(MINUTE)
    charge(subject, "night", 10)
    assert {each.group for each in seconds(subject, sampler, 0, 61)} == {"all", "team", "night"}
    assert seconds(subject, sampler, 61, 121) == []


def test_use_of_lowest_groups_is_the_use_of_their_clients():
    """A chargeback by group has these lines alone."""
    subject, usage = engine(), UsageSampler(MINUTE)
    sampler = GroupSampler(MINUTE)
    for second in range(61):
        charge(subject, f"pay-{second % 3}", 701, NOW + second)
        charge(subject, "web", 13, NOW + second)
        charge(subject, "alone", 5, NOW + second)
        rights = seconds(subject, sampler, second, second + 1)
    samples = at_once(usage.take("weir-1", subject.buckets(), MINUTE + 60.0))
    parents = {each.parent for each in rights}
    lowest = {each.group: each.amount for each in samples if each.group is not None and each.group not in parents}
    assert lowest == {"pay": 61 * 701.0, "web": 61 * 13.0}
    clients = {each.user: each.amount for each in samples if each.group is None}
    assert sum(clients.values()) - clients["alone"] == sum(lowest.values())
    assert next(each.amount for each in samples if each.group == "all") >= 60 * 714.0
