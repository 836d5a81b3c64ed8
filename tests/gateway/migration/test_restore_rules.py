"""A restore file against the brokers' quotas of today."""

import math

import pytest

from gateway.migration.broker_quotas import entity_of
from gateway.migration.restore_rules import restore_plan

ALICE, BOB = entity_of({"user": "alice"}), entity_of({"user": "bob"})
P, C, SHARE = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
LIFTED = {ALICE: {P: 10.0, C: 20.0}}
KEPT = {ALICE: {SHARE: 5.0}, BOB: {SHARE: 6.0}}


@pytest.mark.parametrize(
    ("now", "missing", "different", "restored", "conflicts", "notes"),
    [
        # as the lift left them
        (KEPT, LIFTED, {}, 0, [], []),
        # restored before, wholly or in part
        ({**KEPT, ALICE: {SHARE: 5.0, P: 10.0, C: 20.0}}, {}, {}, 2, [], []),
        ({**KEPT, ALICE: {SHARE: 5.0, P: 10.0}}, {ALICE: {C: 20.0}}, {}, 1, [], []),
        # another value at the brokers
        ({**KEPT, ALICE: {SHARE: 5.0, P: 11.0}}, {ALICE: {C: 20.0}}, {ALICE: {P: 10.0}}, 0, ["is 11, and the file has 10"], []),
        # a new quota that Weir would enforce
        ({**KEPT, BOB: {SHARE: 6.0, P: 1.0}}, LIFTED, {}, 0, ["user=bob: producer_byte_rate 1 has been added since"], []),
        ({**KEPT, entity_of({"ip": None}): {"connection_creation_rate": 1.0}}, LIFTED, {}, 0, ["ip=<default>"], []),
        # quotas that the lift left alone
        ({ALICE: {SHARE: 7.0}, BOB: {SHARE: 6.0}}, LIFTED, {}, 0, [], ["since the lift from 5 to 7; it stays"]),
        ({ALICE: {SHARE: 5.0}}, LIFTED, {}, 0, [], ["user=bob: request_percentage 6 has been removed since"]),
        ({**KEPT, entity_of({"client-id": "x"}): {SHARE: 1.0}}, LIFTED, {}, 0, [], ["client-id=x"]),
        # a value that no restore file can hold
        ({**KEPT, entity_of({"client-id": "x"}): {SHARE: math.nan}}, LIFTED, {}, 0, [], []),
    ],
)
def test_restore_sets_lifted_quotas_and_reports_changes(now, missing, different, restored, conflicts, notes) -> None:
    plan = restore_plan(LIFTED, KEPT, now)
    assert (plan.missing, plan.different, plan.restored) == (missing, different, restored)
    for texts, expected in ((plan.conflicts, conflicts), (plan.notes, notes)):
        assert len(texts) == len(expected)
        assert all(part in text for part, text in zip(expected, texts, strict=True))


def test_a_quota_left_at_the_brokers_that_changed_is_a_conflict() -> None:
    """An address by host name stays at the brokers, although Weir knows its key."""
    host = entity_of({"ip": "localhost"})
    plan = restore_plan(LIFTED, {host: {"connection_creation_rate": 4.0}}, {host: {"connection_creation_rate": 5.0}})
    assert plan.conflicts == ("ip=localhost: connection_creation_rate has been changed since the lift from 4 to 5; it stays",)
