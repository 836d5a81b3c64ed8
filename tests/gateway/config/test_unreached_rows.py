"""Warnings of limits that no client can have, compared with the limits that the quota table gives to clients."""

from itertools import combinations, product

import pytest

from gateway.config.unreached_rows import unreached_warnings
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, DynamicQuotas, EntityName, EntityQuota
from gateway.quotas.quota_table import QuotaTable
from gateway.quotas.shadows import ShadowTable
from tests.gateway.config.texts import entities, parsed

KEY = "producer_byte_rate"
NIGHT = '{from: "22:00", to: "06:00", zone: UTC}'
DEFAULT_USER = f'{{user: "<default>", {KEY}: 10485760}}'
ETL = f"{{client-id: etl, {KEY}: 1048576}}"
ROWS = {
    "less specific client-id": ([ETL, DEFAULT_USER], 0),
    "default client-id": ([f'{{client-id: "<default>", {KEY}: 1048576}}', DEFAULT_USER], 0),
    "exempt default user": ([ETL, '{user: "<default>", exempt: true}'], 0),
    "default user exempt from other quotas": ([ETL, '{user: "<default>", exempt: [volumes]}'], None),
    "default user with another key": ([ETL, '{user: "<default>", consumer_byte_rate: 10485760}'], None),
    "one user": ([ETL, f"{{user: alice, {KEY}: 1048576}}"], None),
    "pair": ([f'{{user: "<default>", client-id: etl, {KEY}: 1048576}}', DEFAULT_USER], None),
    "user below its default client-ids": (
        [f"{{user: alice, {KEY}: 2097152}}", f'{{user: alice, client-id: "<default>", {KEY}: 1048576}}'],
        0,
    ),
    "connections of a user": (
        [
            "{user: alice, max_connections: 5, connection_creation_rate: 5}",
            '{user: alice, client-id: "<default>", exempt: true}',
        ],
        None,
    ),
    "rate of one API": (
        ["{client-id: etl, request_rates: {Metadata: 5}}", '{user: "<default>", request_rates: {Metadata: 50}}'],
        0,
    ),
    "request rate beside that of one API": (
        ["{client-id: etl, request_rate: 5}", '{user: "<default>", request_rates: {Metadata: 50}}'],
        None,
    ),
    "shadow below a real limit": ([f"{{client-id: etl, shadow: {{{KEY}: 1048576}}}}", DEFAULT_USER], 0),
    "shadow below a shadow": (
        [f"{{client-id: etl, shadow: {{{KEY}: 1048576}}}}", f'{{user: "<default>", shadow: {{{KEY}: 10485760}}}}'],
        0,
    ),
    "real limit below a shadow": ([ETL, f'{{user: "<default>", shadow: {{{KEY}: 10485760}}}}'], None),
    "temporary default": ([ETL, f'{{user: "<default>", schedule: {NIGHT}, {KEY}: 10485760}}'], None),
    "temporary row below a lasting default": ([f"{{client-id: etl, schedule: {NIGHT}, {KEY}: 1048576}}", DEFAULT_USER], 0),
    "both in one window": (
        [
            f"{{client-id: etl, schedule: {NIGHT}, {KEY}: 1048576}}",
            f'{{user: "<default>", schedule: {NIGHT}, {KEY}: 10485760}}',
        ],
        0,
    ),
    "default that ends later": (
        [
            f"{{client-id: etl, until: 2099-01-01T00:00Z, {KEY}: 1048576}}",
            f'{{user: "<default>", until: 2099-02-01T00:00Z, {KEY}: 10485760}}',
        ],
        0,
    ),
    "default that ends earlier": (
        [
            f"{{client-id: etl, until: 2099-02-01T00:00Z, {KEY}: 1048576}}",
            f'{{user: "<default>", until: 2099-01-01T00:00Z, {KEY}: 10485760}}',
        ],
        None,
    ),
    "default that leaves out the key at night": (
        [ETL, DEFAULT_USER, f'{{user: "<default>", schedule: {NIGHT}, consumer_byte_rate: 10485760}}'],
        None,
    ),
    "default with another limit at night": (
        [ETL, DEFAULT_USER, f'{{user: "<default>", schedule: {NIGHT}, {KEY}: 20971520}}'],
        0,
    ),
}
"""Rows, and the place of the row with the limit that no client can have; None: there is none."""

NAMES: tuple[EntityName, ...] = ("a", DEFAULT, None)
PARTS = [ClientQuotaEntity(user, client_id) for user, client_id in product(NAMES, NAMES) if (user, client_id) != (None, None)]
CLIENTS = list(product(("a", "b"), ("a", "b")))


@pytest.mark.parametrize("case", ROWS)
def test_unreached_limit_warns(case: str) -> None:
    texts, place = ROWS[case]
    found = [warning.partition("]")[0] + "]" for warning in unreached_warnings(parsed(entities(*texts)).quotas.entities)]
    assert found == ([] if place is None else [f"quotas.entities[{place}]"])


def test_warning_names_the_earlier_row_and_remedies() -> None:
    (warning,) = parsed(entities(ETL, DEFAULT_USER)).warnings()
    assert warning == (
        "quotas.entities[0].producer_byte_rate: never applies, because the row user=<default> has this key and comes first for"
        ' each of these clients — add user to the row, or write client-id: "<default>" in place of user: "<default>"'
    )


def test_warning_says_that_the_earlier_row_is_exempt() -> None:
    (warning,) = parsed(entities(ETL, '{user: "<default>", exempt: true}')).warnings()
    assert "because the row user=<default> is exempt and comes first" in warning


@pytest.mark.parametrize("shadow", [False, True])
def test_warnings_agree_with_the_quota_table(shadow: bool) -> None:
    """All pairs of rows, with limits, exemptions and the quota API's limits, for clients with and without these names."""
    for first, second in combinations(PARTS, 2):
        for exempt in (None, first, second):
            rows = [row(entity, exempt=entity == exempt, shadow=shadow) for entity in (first, second)]
            tables = [(ShadowTable if shadow else QuotaTable)(rows, dynamic) for dynamic in of_api(first, second)]
            reached = {table.resolve(KEY, user, client_id).entity for table in tables for user, client_id in CLIENTS}
            warned = {warning.partition("]")[0][-1] for warning in unreached_warnings(rows)}
            limited = [index for index, each in enumerate(rows) if each.limits or each.shadow]
            assert warned == {str(index) for index in limited if rows[index].entity not in reached}, rows


def row(entity: ClientQuotaEntity, *, exempt: bool, shadow: bool) -> EntityQuota:
    limits = {} if exempt else {KEY: 5.0}
    return EntityQuota(entity, {} if shadow else limits, exempt, shadow=limits if shadow else {})


def of_api(*some: ClientQuotaEntity) -> list[DynamicQuotas]:
    return [{entity: {KEY: 5.0} for entity in chosen} for count in range(len(some) + 1) for chosen in combinations(some, count)]
