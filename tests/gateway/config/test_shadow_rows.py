"""The key `shadow` of rows of entities and groups."""

import pytest

from gateway.config.places import Places
from gateway.config.reload import plan
from tests.gateway.config.texts import MINIMAL, check_problem, entities, parsed


def groups(*rows: str) -> str:
    return MINIMAL + "quotas:\n  groups:\n" + "".join(f"    - {{match: [{{user: a}}], {row}}}\n" for row in rows)


def test_each_rate_of_an_entity_can_be_a_shadow() -> None:
    row = (
        "{user: alice, producer_byte_rate: 9, shadow: {producer_byte_rate: 1, consumer_byte_rate: 2, request_rate: 3,"
        " controller_mutation_rate: 0.5, connection_creation_rate: 4, request_rates: {Metadata: 5}}}"
    )
    (quota,) = parsed(entities(row)).quotas.entities
    assert dict(quota.limits) == {"producer_byte_rate": 9}
    assert dict(quota.shadow) == {
        "producer_byte_rate": 1,
        "consumer_byte_rate": 2,
        "request_rate": 3,
        "controller_mutation_rate": 0.5,
        "connection_creation_rate": 4,
        "request_rates.Metadata": 5,
    }


def test_group_has_shadow_ceilings() -> None:
    (group,) = parsed(groups("name: jobs, shadow: {producer_byte_rate: 7, request_rate: 3}")).quotas.groups
    assert (dict(group.limits), dict(group.shadow)) == ({}, {"producer_byte_rate": 7, "request_rate": 3})
    assert dict(group.quota.shadow) == {"producer_byte_rate": 7, "request_rate": 3}


@pytest.mark.parametrize(
    ("row", "key", "words"),
    [
        ("user: a, shadow: {producer_byte_rat: 5}", ".shadow.producer_byte_rat", "did you mean producer_byte_rate?"),
        ("user: a, shadow: {producer_byte_rate: 0}", ".shadow.producer_byte_rate", "must be above 0 (value 0, line 5)"),
        ("user: a, shadow: {}", ".shadow", "is empty (value {}, line 5) — give it a rate, or remove the key"),
        ("user: a, shadow: 5", ".shadow", "must be a section with keys of its own, not a number (value 5, line 5)"),
        ("ip: 10.0.0.1, shadow: {request_rate: 5}", "", "has shadow.request_rate, a quota of client-id and user"),
        ("user: a, shadow: {request_rate: 5}, until: 2027-12-01T06:00Z", "", "a shadow limit delays nobody"),
        ("user: a, shadow: {max_connections: 5}", ".shadow.max_connections", "shadow limits are rates (line 5)"),
        ("user: a, shadow: {request_rates: {Metadat: 5}}", ".shadow.request_rates.Metadat", "did you mean Metadata?"),
    ],
)
def test_bad_shadow_is_refused_with_its_remedy(row: str, key: str, words: str) -> None:
    check_problem(entities(f"{{{row}}}"), f"quotas.entities[0]{key}", words)


def test_group_has_no_shadow_of_new_connections() -> None:
    key = "quotas.groups[0].shadow.connection_creation_rate"
    check_problem(groups("name: jobs, shadow: {connection_creation_rate: 5}"), key, "is not a key of quotas.groups.shadow")


def test_timed_row_with_limits_may_have_a_shadow() -> None:
    timed = "{user: a, request_rate: 9, shadow: {request_rate: 5}, until: 2027-12-01T06:00Z}"
    (quota,) = parsed(entities(timed)).quotas.entities
    assert dict(quota.shadow) == {"request_rate": 5}


def test_shadow_that_never_throttles_gets_a_warning() -> None:
    config = parsed(entities("{user: a, request_rate: 5, shadow: {request_rate: 5, producer_byte_rate: 7}}"))
    (warning,) = config.warnings()
    assert warning.startswith("quotas.entities[0].shadow.request_rate: 5 is not below the real request_rate of 5, so it never")


def test_group_with_shadow_alone_gets_no_warning() -> None:
    assert parsed(groups("name: jobs, shadow: {request_rate: 5}")).warnings() == []


def test_row_in_json_has_its_shadow() -> None:
    row = {"user": "a", "request_rate": 9.0, "shadow": {"request_rate": 5.0, "request_rates": {"Metadata": 2.0}}}
    config = parsed(entities("{user: a, request_rate: 9, shadow: {request_rate: 5, request_rates: {Metadata: 2}}}"))
    assert config.model_dump(mode="json", by_alias=True)["quotas"]["entities"] == [row]


def test_changed_shadow_is_a_change_of_its_row() -> None:
    before, after = (parsed(entities(f"{{user: a, request_rate: 9, shadow: {{request_rate: {rate}}}}}")) for rate in (5, 6))
    assert list(plan(before, after).changes) == [
        "quotas.entities: changed user=a (request_rate 9, shadow request_rate 5 -> request_rate 9, shadow request_rate 6)"
    ]


def test_place_of_a_shadow_is_the_line_of_its_row() -> None:
    config = parsed(entities("{user: a, shadow: {request_rate: 5}}"))
    assert Places(config, "weir.yaml").of_entity("user=a", "file") == "weir.yaml:5"
