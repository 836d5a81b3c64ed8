"""A lift needs a limit in Weir that is enforced and at least as low, for each entity."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gateway.config.entities import entity_quota
from gateway.migration.broker_quotas import BrokerQuotas, entity_of, translated
from gateway.migration.lift_rules import GatewayQuotas, burst_notes, listed, loosened, obstacles, with_api_quotas
from gateway.quotas.entity import ClientQuotaEntity

ALICE = entity_of({"user": "alice"})
EVERYBODY = entity_of({"user": None})


def gateway(*rows: Mapping[str, object], enforce: bool = True) -> GatewayQuotas:
    return GatewayQuotas("weir.yaml", enforce, tuple(entity_quota(row) for row in rows))


def test_limit_of_the_quota_api_is_named_as_such() -> None:
    both = with_api_quotas(
        gateway({"user": "alice", "producer_byte_rate": 30}), {ClientQuotaEntity("alice"): {"producer_byte_rate": 31.0}}
    )
    (found,) = obstacles(translated({ALICE: {"producer_byte_rate": 10.0}}, 3), both)
    assert found.startswith("user=alice, producer_byte_rate: Weir's quota API allows 31, and the brokers allow 30")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"producer_byte_rate": 30}, None),
        ({"producer_byte_rate": 29}, None),
        ({"producer_byte_rate": 10, "request_rate": 5}, None),
        ({"producer_byte_rate": 30, "exempt": ["topics"]}, None),
        ({"producer_byte_rate": 31}, "allows 31, and the brokers allow 30 (10 x 3 brokers) — lower it"),
        ({"consumer_byte_rate": 30}, "without this key — set it to 30 (10 x 3 brokers), or less"),
        ({"exempt": True}, "exempts this entity, and the brokers limit it"),
        ({"exempt": ["rates", "volumes"]}, "exempts this entity, and the brokers limit it"),
        (None, "has no row for this entity — add the row that `weir quotas import` prints"),
    ],
)
def test_lift_needs_a_limit_at_least_as_low(row: Mapping[str, object] | None, problem: str | None) -> None:
    rows = [] if row is None else [{"user": "alice", **row}]
    found = obstacles(translated({ALICE: {"producer_byte_rate": 10.0}}, 3), gateway(*rows))
    if problem is None:
        assert found == []
    else:
        assert len(found) == 1
        assert found[0].startswith("user=alice, producer_byte_rate: weir.yaml ")
        assert problem in found[0]


@pytest.mark.parametrize(("limit", "lifted"), [(10, True), (11, False)])
def test_scope_broker_needs_the_brokers_own_limit(limit: int, lifted: bool) -> None:
    found = obstacles(
        translated({ALICE: {"producer_byte_rate": 10.0}}, None), gateway({"user": "alice", "producer_byte_rate": limit})
    )
    assert found == [] if lifted else found[0].endswith("the brokers allow 10 (10 at each broker) — lower it")


@pytest.mark.parametrize(
    ("broker", "config"),
    [
        ({"user": None}, {"user": "alice"}),
        ({"user": "alice", "client-id": None}, {"user": "alice"}),
        ({"client-id": None}, {"user": "<default>", "client-id": "<default>"}),
    ],
)
def test_a_row_of_another_entity_does_not_count(broker: dict[str, str | None], config: dict[str, object]) -> None:
    translation = translated({entity_of(broker): {"producer_byte_rate": 10.0}}, 3)
    assert "has no row" in obstacles(translation, gateway({**config, "producer_byte_rate": 1}))[0]


def test_lift_needs_enforcement() -> None:
    translation = translated({ALICE: {"producer_byte_rate": 10.0}}, 3)
    (problem,) = obstacles(translation, gateway({"user": "alice", "producer_byte_rate": 30}, enforce=False))
    assert problem.startswith("weir.yaml: quotas.enforce is false")


def test_processes_without_sharing_are_an_obstacle() -> None:
    translation = translated({ALICE: {"producer_byte_rate": 10.0}}, 3)
    two = replace(gateway({"user": "alice", "producer_byte_rate": 30}), copies=2)
    (problem,) = obstacles(translation, two)
    assert "each of 2 processes would give every client its whole limit — add 'sharing: {}'" in problem


@pytest.mark.parametrize(("api", "problem"), [(31.0, "allows 31"), (30.0, None), (5.0, None)])
def test_quotas_of_weirs_own_api_override_the_file(api: float, problem: str | None) -> None:
    translation = translated({ALICE: {"producer_byte_rate": 10.0}}, 3)
    for rows in ([], [{"user": "alice", "producer_byte_rate": 1, "consumer_byte_rate": 1}]):
        found = obstacles(
            translation, with_api_quotas(gateway(*rows), {ClientQuotaEntity("alice"): {"producer_byte_rate": api}})
        )
        assert [problem in each for each in found] == ([] if problem is None else [True])


def test_quotas_that_stay_at_the_brokers_need_no_row() -> None:
    quotas = {ALICE: {"request_percentage": 10.0}, entity_of({"ip": "host"}): {"connection_creation_rate": 1.0}}
    assert obstacles(translated(quotas, 3), gateway(enforce=False)) == []


def test_rate_of_controller_is_not_multiplied() -> None:
    translation = translated({ALICE: {"controller_mutation_rate": 2.5}}, 3)
    assert obstacles(translation, gateway({"user": "alice", "controller_mutation_rate": 2.5})) == []
    assert "allows 2.6" in obstacles(translation, gateway({"user": "alice", "controller_mutation_rate": 2.6}))[0]


def test_a_dead_broker_explains_a_limit_that_is_too_high() -> None:
    """The config has the rate of three brokers, and two of them are alive."""
    found = obstacles(
        translated({ALICE: {"producer_byte_rate": 10.0}}, 2), gateway({"user": "alice", "producer_byte_rate": 30})
    )
    assert "--brokers" in found[0]


def test_every_problem_is_listed() -> None:
    quotas = {entity_of({"user": name}): {"producer_byte_rate": 1.0, "consumer_byte_rate": 1.0} for name in "abc"}
    assert len(obstacles(translated(quotas, 1), gateway(enforce=False))) == 7


DEFAULTS: BrokerQuotas = {EVERYBODY: {"producer_byte_rate": 10.0}, entity_of({"ip": None}): {"connection_creation_rate": 4.0}}


@pytest.mark.parametrize(
    ("row", "note"),
    [
        (
            {"user": "weir", "exempt": True},
            "user=weir, producer_byte_rate: it is exempt from rates in the config; today, user=",
        ),
        (
            {"user": "bob", "producer_byte_rate": 31},
            "user=bob, producer_byte_rate: it has 31 in the config; today, user=<default>",
        ),
        ({"ip": "10.0.0.1", "exempt": True}, "ip=10.0.0.1, connection_creation_rate: it is exempt"),
        (
            {"user": "bob", "client-id": "etl", "producer_byte_rate": 31},
            "user=bob, client-id=etl, producer_byte_rate: it has 31",
        ),
        ({"user": "bob", "producer_byte_rate": 30}, None),
        ({"user": "bob", "consumer_byte_rate": 99}, None),
        ({"user": "<default>", "producer_byte_rate": 30}, None),
        ({"user": "weir", "exempt": ["topics"]}, None),
    ],
)
def test_rows_that_override_a_default_are_noted(row: Mapping[str, object], note: str | None) -> None:
    found = loosened(translated(DEFAULTS, 3), gateway(row).rows)
    assert [each.startswith(note or "?") for each in found] == ([] if note is None else [True])


@pytest.mark.parametrize(("samples", "seconds", "burst"), [(11, 1, "10 s"), (3, 2, "4 s"), (2, 1, None)])
def test_a_long_burst_is_noted(samples: int, seconds: int, burst: str | None) -> None:
    assert [f"may use {burst} of its quota at once" in note for note in burst_notes(samples, seconds)] == [True] * (
        burst is not None
    )


def test_listing_has_both_limits() -> None:
    translation = translated({ALICE: {"producer_byte_rate": 10.0, "consumer_byte_rate": 20.0}}, 3)
    assert listed(translation.moved, 3, gateway({"user": "alice", "producer_byte_rate": 29})) == [
        "user=alice: consumer_byte_rate 20 x 3 brokers; weir.yaml: none",
        "user=alice: producer_byte_rate 10 x 3 brokers; weir.yaml: 29",
    ]
