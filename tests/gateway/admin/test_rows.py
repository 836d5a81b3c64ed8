"""Rows of usage as JSON values, and back."""

from dataclasses import asdict

from gateway.admin.rows import undescribed
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.snapshot import UsageRow
from gateway.steps import at_once
from tests.gateway.quotas.engines import bucket_of, rows_of


def usage(users: int) -> list[UsageRow]:
    quotas = [EntityQuota(ClientQuotaEntity(f"user-{number}"), {"producer_byte_rate": 1_000}) for number in range(users)]
    engine = QuotaEngine(QuotaSettings(tuple(quotas)), 0.0)
    for number in range(users):
        bucket_of(engine, "produce", f"user-{number}", "etl", 0.0).charge(1_000_000, 0.0)
    return rows_of(engine, 1.0)


def test_rows_are_the_same_after_the_way_back() -> None:
    rows = usage(3)
    values = [asdict(row) for row in rows]
    assert at_once(undescribed(values)) == rows
    assert values == []


def test_each_row_is_read_in_a_step() -> None:
    values = [asdict(row) for row in usage(50)]
    assert sum(1 for _ in undescribed(values)) == 50
