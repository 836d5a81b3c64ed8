"""Keeps the rates of topics over a restart. `quotas.recent_use` does so for buckets."""

from collections.abc import Iterable, Iterator

from gateway.features.topic_quotas.rules import ALL_TOPICS, TOPIC, TopicQuotas
from gateway.features.topic_quotas.topic_meters import AppendedBytes
from gateway.quotas.recent_use import TopicRateUse
from gateway.quotas.shared_meter import UsageAccount, UsageKey

_LEAST = 1.0
"""The fewest bytes that are saved. A one-minute rate falls towards 0 and never reaches it."""


def topic_uses(
    quotas: TopicQuotas, accounts: Iterable[tuple[UsageKey, UsageAccount]], now: float, broker: int | None = None
) -> Iterator[TopicRateUse]:
    """The use that these accounts of `quotas` still count. `broker` as in `TopicRateUse`."""
    settings = quotas.settings
    for (kind, name), use in accounts:
        if not isinstance(use, AppendedBytes) or not isinstance(name, str):
            continue
        elsewhere = 0.0 if use.elsewhere is None else use.elsewhere.kept(now)
        if use.rate.kept(now) + elsewhere >= _LEAST:
            yield TopicRateUse(
                name if kind == TOPIC else None,
                settings.meter,
                settings.window,
                tuple(use.rate.dump(now)),
                () if use.elsewhere is None else tuple(use.elsewhere.dump(now)),
                broker,
            )


def restore_topics(quotas: TopicQuotas, saved: Iterable[TopicRateUse], now: float) -> None:
    """Restore saved use, except rates of another algorithm. Another window does not matter."""
    settings = quotas.settings
    same = [each for each in saved if each.meter == settings.meter]
    quotas.expect((each.name for each in same if each.name is not None), now)
    for each in same:
        use = quotas.known(ALL_TOPICS, "") if each.name is None else quotas.known(TOPIC, each.name)
        if use is None:
            continue
        use.rate.restore(each.here, now)
        if each.elsewhere:
            use.elsewhere = use.elsewhere or quotas.new_rate(now)
            use.elsewhere.restore(each.elsewhere, now)
