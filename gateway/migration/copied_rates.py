"""Rates in a config that are the brokers' own figures: Kafka grants them at each broker, Weir in the whole cluster."""

from collections.abc import Iterator, Sequence

from gateway.migration.broker_quotas import PER_BROKER, BrokerQuotas, limits_by_target, number_text, translated
from gateway.quotas.entity import EntityQuota


def copied_rate_warnings(rows: Sequence[EntityQuota], quotas: BrokerQuotas, brokers: int) -> Iterator[str]:
    """One line for each limit that equals the rate of one of several brokers."""
    if brokers < 2:
        return
    wanted = limits_by_target(translated(quotas, brokers).moved)
    for index, row in enumerate(rows):
        for key, quota in wanted.get(row.entity, {}).items():
            if key in PER_BROKER and row.limits.get(key) == quota.at_broker:
                yield (
                    f"quotas.entities[{index}].{key}: {number_text(quota.at_broker)} is also the rate at the brokers. Kafka"
                    f" grants it at each of {brokers} brokers, Weir in the whole cluster — write {number_text(quota.limit)},"
                    " or run `weir quotas import`"
                )
