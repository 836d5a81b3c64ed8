"""A limit that equals the brokers' own rate gets a warning, if there are several brokers."""

import pytest

from gateway.migration.copied_rates import copied_rate_warnings
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota

QUOTAS = {
    (("user", "alice"),): {"producer_byte_rate": 1_048_576.0, "controller_mutation_rate": 5.0},
    (("client-id", None),): {"consumer_byte_rate": 2_000_000.0},
}
ALICE, CLIENTS = ClientQuotaEntity("alice"), ClientQuotaEntity(None, DEFAULT)


@pytest.mark.parametrize(
    ("rows", "brokers", "keys"),
    [
        (
            [EntityQuota(ALICE, {"producer_byte_rate": 1_048_576})],
            3,
            ["quotas.entities[0].producer_byte_rate: 1048576 is also"],
        ),
        ([EntityQuota(ALICE, {"producer_byte_rate": 1_048_576})], 1, []),
        ([EntityQuota(ALICE, {"producer_byte_rate": 3_145_728, "controller_mutation_rate": 5.0})], 3, []),
        (
            [EntityQuota(ALICE, {"consumer_byte_rate": 7}), EntityQuota(CLIENTS, {"consumer_byte_rate": 2_000_000})],
            2,
            ["quotas.entities[1].consumer_byte_rate: 2000000 is also"],
        ),
        ([], 3, []),
    ],
)
def test_copied_rates_are_named(rows: list[EntityQuota], brokers: int, keys: list[str]) -> None:
    found = list(copied_rate_warnings(rows, QUOTAS, brokers))
    assert [line[: len(key)] for line, key in zip(found, keys, strict=True)] == keys


def test_warning_has_the_rate_of_the_cluster() -> None:
    (line,) = copied_rate_warnings([EntityQuota(ALICE, {"producer_byte_rate": 1_048_576})], QUOTAS, 3)
    assert "write 3145728, run `weir quotas import`, or set quotas.scope to broker" in line


@pytest.mark.parametrize(("limit", "named"), [(1_048_576, False), (3_145_728, True), (7, False)])
def test_rate_of_the_cluster_is_named_with_scope_broker(limit: int, named: bool) -> None:
    rows = [EntityQuota(ALICE, {"producer_byte_rate": limit, "controller_mutation_rate": 5})]
    found = list(copied_rate_warnings(rows, QUOTAS, 3, at_each_broker=True))
    assert [line.startswith("quotas.entities[0].producer_byte_rate: 3145728 is the rate of all") for line in found] == [
        True
    ] * named
    assert all("at each of them — write 1048576" in line for line in found)
