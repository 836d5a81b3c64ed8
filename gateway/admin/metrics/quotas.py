"""Metrics of quotas of clients and addresses: use, limits, throttling."""

from collections.abc import Callable, Iterator
from itertools import chain

from gateway.admin.metrics.row import Distribution, Histogram, Labels, Read, Row, Value, deprecated, one, reasons
from gateway.admin.metrics.scrape import Scrape
from gateway.quotas.kinds import KINDS, UNITS, Unit
from gateway.quotas.snapshot import THROTTLE_BOUNDS, UsageRow

_BUCKET: Labels = ("kind", "user", "client_id", "ip", "broker")
"""Only addresses have the label `ip`: samples of clients keep the labels that they had before there were addresses. Only with
`scope: broker` is there a label `broker`: an empty label is none for Prometheus."""

_SHADOW: Labels = (*_BUCKET, "group")


def _per_bucket(read: Callable[[UsageRow], float | None], *, unit: Unit | None = None) -> Read:
    """A value for each bucket that has one. Groups have metrics of their own: a sum over clients must not count them twice."""

    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        for row in scrape.rows:
            if not row.group and not row.shadow and (unit is None or KINDS[row.kind].unit == unit):
                value = read(row)
                if value is not None:
                    last = (row.ip, row.broker) if row.broker else (row.ip,) if row.ip else ()
                    yield (row.kind, row.user, row.client_id, *last), value

    return values


def _per_group(read: Callable[[UsageRow], float | None]) -> Read:
    """A value for each kind of each group that has one."""

    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        for row in scrape.rows:
            if row.group and not row.shadow and (value := read(row)) is not None:
                yield (row.group, row.kind), value

    return values


def _per_shadow(read: Callable[[UsageRow], float | None]) -> Read:
    """A value for each shadow limit that has one. They have metrics of their own, because they measure the same use again."""

    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        for row in scrape.rows:
            if row.shadow and (value := read(row)) is not None:
                yield (row.kind, row.user, row.client_id, row.ip, row.broker, row.group), value

    return values


def _throttle_times(scrape: Scrape) -> Iterator[tuple[Labels, Histogram]]:
    for total in scrape.totals:
        kind = KINDS.get(total.kind)
        if kind is not None and kind.api is not None and not total.seconds:
            continue  # most APIs have no rate
        yield (total.kind,), Histogram(THROTTLE_BOUNDS, total.counts, total.seconds)


def _of_unit(unit: Unit) -> Iterator[Row]:
    """One name for each unit, because a sum over several units means nothing."""
    name = unit.name
    yield Value(
        "counter",
        f"weir_quota_{name}_total",
        f"{name.capitalize()} charged to a bucket.",
        _BUCKET,
        _per_bucket(lambda row: row.amount_total, unit=unit),
    )
    yield Value(
        "gauge",
        f"weir_quota_usage_{name}_per_second",
        f"Use of a bucket through this gateway, {name} per second.",
        _BUCKET,
        _per_bucket(lambda row: row.rate, unit=unit),
    )
    yield Value(
        "gauge",
        f"weir_quota_limit_{name}_per_second",
        f"Limit of a bucket for the whole cluster, or for its broker, {name} per second. Absent without a limit.",
        _BUCKET,
        _per_bucket(lambda row: row.limit, unit=unit),
        merge="max",
    )
    yield Value(
        "gauge",
        f"weir_quota_tokens_{name}",
        f"Tokens left in a token bucket, in {name}. Below 0 during a throttle.",
        _BUCKET,
        _per_bucket(lambda row: row.tokens, unit=unit),
        merge="min",
    )


_USAGE = Value(
    "gauge",
    "weir_quota_usage",
    "Use of a bucket through this gateway, in the kind's unit per second.",
    _BUCKET,
    _per_bucket(lambda row: row.rate),
)
_LIMIT = Value(
    "gauge",
    "weir_quota_limit",
    "Limit of a bucket, in the kind's unit per second. Absent without a limit.",
    _BUCKET,
    _per_bucket(lambda row: row.limit),
    merge="max",
)
_TOKENS = Value(
    "gauge",
    "weir_quota_tokens",
    "Tokens left in a token bucket, in the kind's unit. Below 0 during a throttle.",
    _BUCKET,
    _per_bucket(lambda row: row.tokens),
    merge="min",
)

METRICS: tuple[Row, ...] = (
    *chain.from_iterable(map(_of_unit, UNITS)),
    deprecated("weir_quota_usage", _USAGE, "weir_quota_usage_UNIT_per_second"),
    deprecated("weir_quota_limit", _LIMIT, "weir_quota_limit_UNIT_per_second"),
    deprecated("weir_quota_tokens", _TOKENS, "weir_quota_tokens_UNIT"),
    Value("gauge", "weir_quota_used_ratio", "Fraction of the quota used (KIP-13), by all gateways that share it. Throttling"
          " begins at 1.0.", _BUCKET, _per_bucket(lambda row: None if row.limit is None else row.used_ratio), merge="max"),
    Value("counter", "weir_throttled_requests_total", "Requests that Weir throttled. With `enforce: false`: requests that Weir"
          " would have throttled.", _BUCKET, _per_bucket(lambda row: row.throttled_total)),
    Value("counter", "weir_throttle_seconds_total", "Throttle times of throttled requests, summed up. With `enforce: false`, no"
          " client waits.", _BUCKET, _per_bucket(lambda row: row.throttle_seconds_total)),
    Distribution("weir_throttle_time_seconds", "Throttle times of throttled requests. With `enforce: false`, no client"
                 " waits.", ("kind",), _throttle_times),
    Value("counter", "weir_early_requests_total", "Requests that arrived before the client's throttle time was over.",
          _BUCKET, _per_bucket(lambda row: None if row.ip else row.early_total)),
    Value("counter", "weir_early_request_seconds_total", "Time by which requests arrived before the client's throttle time was"
          " over, at least.", _BUCKET, _per_bucket(lambda row: None if row.ip else row.early_seconds_total)),
    Value("gauge", "weir_group_usage", "Use of a group's members together through this gateway, in the kind's unit per second.",
          ("group", "kind"), _per_group(lambda row: row.rate)),
    Value("gauge", "weir_group_limit", "Ceiling of a group for the whole cluster, in the kind's unit per second. Absent without"
          " a ceiling, and before the first request.", ("group", "kind"), _per_group(lambda row: row.limit), merge="max"),
    Value("gauge", "weir_group_used_ratio", "Used fraction of a group's ceiling, or of its present share if it shares a"
          " capacity, by all gateways. Throttling begins at 1.0.", ("group", "kind"),
          _per_group(lambda row: None if row.limit is None else row.used_ratio), merge="max"),
    Value("counter", "weir_group_throttled_requests_total", "Requests that Weir throttled for a group's ceiling or share."
          " With `enforce: false`: requests that Weir would have throttled.",
          ("group", "kind"), _per_group(lambda row: row.throttled_total)),
    Value("gauge", "weir_shadow_limit", "Shadow limit for the whole cluster, in the kind's unit per second.", _SHADOW,
          _per_shadow(lambda row: row.limit), merge="max"),
    Value("gauge", "weir_shadow_used_ratio", "Fraction of a shadow limit used, by all gateways that share it. A real limit"
          " would throttle above 1.0.", _SHADOW,
          _per_shadow(lambda row: None if row.limit is None else row.used_ratio), merge="max"),
    Value("counter", "weir_shadow_throttled_requests_total", "Requests that a shadow limit would have throttled.", _SHADOW,
          _per_shadow(lambda row: row.throttled_total)),
    Value("counter", "weir_shadow_throttle_seconds_total", "Throttle times that a shadow limit would have caused for a client"
          " that waits, summed up.", _SHADOW, _per_shadow(lambda row: row.throttle_seconds_total)),
    Value("gauge", "weir_small_quotas", "Entities whose quota is so small that a full request mutes for longer than a usual"
          " client waits.", ("kind",), reasons(lambda scrape: scrape.small_quotas), merge="max"),
    Value("counter", "weir_quota_overflowed_total", "Times a client had to share a bucket, because of quotas.max_entities.", (),
          one(lambda scrape: scrape.overflowed)),
    Value("gauge", "weir_quota_enforced", "1 if quotas are enforced, 0 if they are only measured.", (),
          one(lambda scrape: scrape.effective.config.quotas.enforce), merge="min"),
)  # fmt: skip
