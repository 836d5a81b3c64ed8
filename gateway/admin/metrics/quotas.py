"""Metrics of quotas of clients and addresses: use, limits, throttling."""

from collections.abc import Callable, Iterator

from gateway.admin.metrics.row import Distribution, Histogram, Labels, Read, Row, Value, one, reasons
from gateway.admin.metrics.scrape import Scrape
from gateway.quotas.kinds import BYTES, KINDS, Unit
from gateway.quotas.snapshot import THROTTLE_BOUNDS, UsageRow

_BUCKET: Labels = ("kind", "user", "client_id", "ip")
"""Only addresses have the label `ip`: samples of clients keep the labels that they had before there were addresses."""


def _per_bucket(read: Callable[[UsageRow], float | None], *, unit: Unit | None = None) -> Read:
    """A value for each bucket that has one."""

    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        for row in scrape.rows:
            if unit is None or KINDS[row.kind].unit == unit:
                value = read(row)
                if value is not None:
                    yield (row.kind, row.user, row.client_id, *((row.ip,) if row.ip else ())), value

    return values


def _early(read: Callable[[UsageRow], float]) -> Read:
    def values(scrape: Scrape) -> Iterator[tuple[Labels, float]]:
        for row in scrape.rows:
            if not row.ip:
                yield (row.user, row.client_id), read(row)

    return values


def _throttle_times(scrape: Scrape) -> Iterator[tuple[Labels, Histogram]]:
    for total in scrape.totals:
        yield (total.kind,), Histogram(THROTTLE_BOUNDS, total.buckets, total.seconds)


METRICS: tuple[Row, ...] = (
    Value("counter", "weir_quota_bytes_total", "Bytes charged to a bucket of a byte quota.", _BUCKET,
          _per_bucket(lambda row: row.amount_total, unit=BYTES)),
    Value("gauge", "weir_quota_usage", "Current use of a bucket through this gateway, in units per second.", _BUCKET,
          _per_bucket(lambda row: row.rate)),
    Value("gauge", "weir_quota_limit", "Limit of a bucket, in units per second; absent if unlimited.", _BUCKET,
          _per_bucket(lambda row: row.limit), merge="max"),
    Value("gauge", "weir_quota_used_ratio", "Fraction of the quota used (KIP-13), by all gateways that share it. Throttling"
          " begins at 1.0.", _BUCKET, _per_bucket(lambda row: None if row.limit is None else row.used_ratio), merge="max"),
    Value("gauge", "weir_quota_tokens", "Tokens left in a bucket, below 0 while it is throttled.", _BUCKET,
          _per_bucket(lambda row: row.tokens), merge="min"),
    Value("counter", "weir_throttled_requests_total", "Requests that Weir throttled.", _BUCKET,
          _per_bucket(lambda row: row.throttled_total)),
    Value("counter", "weir_throttle_seconds_total", "Sum of these throttle times in seconds.", _BUCKET,
          _per_bucket(lambda row: row.throttle_seconds_total)),
    Distribution("weir_throttle_time_seconds", "Throttle times in seconds.", ("kind",), _throttle_times),
    Value("counter", "weir_early_requests_total", "Requests that arrived before the client's throttle time was over.",
          ("user", "client_id"), _early(lambda row: row.early_total)),
    Value("counter", "weir_early_request_seconds_total", "Seconds by which these requests arrived early, at least.",
          ("user", "client_id"), _early(lambda row: row.early_seconds_total)),
    Value("gauge", "weir_small_quotas", "Entities whose quota is so small that a full request mutes for longer than the usual"
          " session timeout.", ("kind",), reasons(lambda scrape: scrape.small_quotas), merge="max"),
    Value("counter", "weir_quota_overflowed_total", "Times a client had to share a bucket, because of quotas.max_entities.", (),
          one(lambda scrape: scrape.overflowed)),
    Value("gauge", "weir_quota_enforced", "1 if quotas are enforced, 0 if they are only measured.", (),
          one(lambda scrape: scrape.effective.config.quotas.enforce), merge="min"),
)  # fmt: skip
