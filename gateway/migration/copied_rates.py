"""Rates of a config that are the brokers' in the other scope: Kafka grants them at each broker, Weir in `quotas.scope`."""

from collections.abc import Iterator, Sequence

from gateway.migration.broker_quotas import PER_BROKER, BrokerQuotas, MovedQuota, limits_by_target, number_text, translated
from gateway.quotas.entity import EntityQuota


def copied_rate_warnings(
    rows: Sequence[EntityQuota], quotas: BrokerQuotas, brokers: int, *, at_each_broker: bool = False
) -> Iterator[str]:
    """One line for each limit that equals the rate of one of several brokers, or with `at_each_broker` that of all of them."""
    if brokers < 2:
        return
    wanted = limits_by_target(translated(quotas, brokers).moved)
    for index, row in enumerate(rows):
        for key, quota in wanted.get(row.entity, {}).items():
            wrong = quota.limit if at_each_broker else quota.at_broker
            if key in PER_BROKER and row.limits.get(key) == wrong:
                yield f"quotas.entities[{index}].{key}: " + (_at_each if at_each_broker else _in_cluster)(quota, brokers)


def _in_cluster(quota: MovedQuota, brokers: int) -> str:
    return (
        f"{number_text(quota.at_broker)} is also the rate at the brokers. Kafka grants it at each of {brokers} brokers, Weir in"
        f" the whole cluster — write {number_text(quota.limit)}, run `weir quotas import`, or set quotas.scope to broker"
    )


def _at_each(quota: MovedQuota, brokers: int) -> str:
    return (
        f"{number_text(quota.limit)} is the rate of all {brokers} brokers together. With quotas.scope: broker, Weir grants it"
        f" at each of them — write {number_text(quota.at_broker)}, or run `weir quotas import`"
    )
