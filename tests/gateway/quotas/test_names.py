"""Names in buckets and tables: long ones, those that look like Weir's own, and their entities."""

import pytest

from gateway.quotas.entity import MAX_NAME, OTHER, ClientQuotaEntity, EntityQuota, Tags, short_name
from gateway.quotas.groups import Group
from gateway.quotas.quota_table import QuotaTable

LONG = "x" * (MAX_NAME + 1)


def test_only_longer_names_are_shortened():
    assert short_name("x" * MAX_NAME) == "x" * MAX_NAME
    short = short_name(LONG)
    assert short.startswith("x" * 160 + "...")
    assert len(short) == 160 + 3 + 32


def test_short_form_leads_to_another_bucket():
    assert short_name(short_name(LONG)) != short_name(LONG)
    almost = short_name(LONG)[:-1]
    assert short_name(almost) == almost


@pytest.mark.parametrize(
    ("tags", "bounded"),
    [
        (Tags("alice", None), Tags("alice", None)),
        (Tags(LONG, None), Tags(short_name(LONG), None)),
        (Tags(None, LONG, broker=3), Tags(None, short_name(LONG), broker=3)),
        (Tags("alice", LONG), Tags("alice", short_name(LONG))),
    ],
)
def test_long_tags_of_older_gateways_are_shortened(tags, bounded):
    assert tags.bounded() == bounded


def test_entity_of_a_long_name_keeps_its_other_part():
    assert ClientQuotaEntity(LONG, "etl").shortened() == ClientQuotaEntity(short_name(LONG), "etl")
    assert ClientQuotaEntity("alice", LONG).shortened() == ClientQuotaEntity("alice", short_name(LONG))
    plain = ClientQuotaEntity(ip="10.0.0.7")
    assert plain.shortened() is plain


def test_table_lists_entities_by_their_whole_names():
    rows = [EntityQuota(ClientQuotaEntity(name), {"producer_byte_rate": 5.0}) for name in (LONG, "alice")]
    assert list(QuotaTable(rows).entities()) == [ClientQuotaEntity(LONG), ClientQuotaEntity("alice")]


def test_changed_exemption_is_a_change_of_each_quota():
    both, one = ([EntityQuota(ClientQuotaEntity(name), exempt=True) for name in names] for names in (("a", "b"), ("a",)))
    for before, after in ((both, one), (one, both)):
        assert QuotaTable(before).followed_by(after, {}).of("producer_byte_rate") == {ClientQuotaEntity("b")}
    assert QuotaTable(both).followed_by(list(both), {}).of("producer_byte_rate") == set()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (OTHER, "\\<other>"),
        ("\\<other>", "\\\\<other>"),
        ("X<other>", "X<other>"),
        ("<other>\\", "<other>\\"),
        ("\\alice", "\\alice"),
    ],
)
def test_client_with_the_name_of_the_others_is_told_apart(name, shown):
    assert Tags(name, name).shown == (shown, shown)
    assert Tags(OTHER, OTHER, overflow=True).shown == (OTHER, OTHER)


@pytest.mark.parametrize(("broker", "text"), [(None, ""), (-1, "bootstrap"), (0, "0"), (3, "3")])
def test_broker_of_a_bucket_is_shown(broker, text):
    assert Tags(None, "etl", broker=broker).broker_text == text


def test_quota_of_a_group_has_its_line():
    group = Group("jobs", (), {"producer_byte_rate": 5.0}, line=7, shadow={"request_rate": 1.0})
    assert (group.quota.entity, group.quota.line) == (ClientQuotaEntity(group="jobs"), 7)
    assert (group.quota.limits, group.quota.shadow, group.quota.when) == (
        {"producer_byte_rate": 5.0},
        {"request_rate": 1.0},
        None,
    )
