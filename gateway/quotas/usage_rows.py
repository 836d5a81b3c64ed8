"""Rows of buckets for metrics, tables and reports: one for each bucket with a label, and one for all others."""

from gateway.quotas.bucket import Bucket
from gateway.quotas.entity import OTHER
from gateway.quotas.kinds import QuotaKind
from gateway.quotas.snapshot import EXEMPT, Tally, UsageRow


def usage_row(bucket: Bucket, now: float) -> UsageRow:
    limit, before = bucket.resolution.limit, bucket.shown_before
    user, client_id = bucket.resolution.tags.shown
    return UsageRow(
        kind=bucket.kind.name,
        user=user,
        client_id=client_id,
        ip=bucket.resolution.tags.ip or "",
        level=str(bucket.resolution.entity or "") + (EXEMPT if bucket.resolution.exempt else ""),
        source=bucket.resolution.source.value if bucket.resolution.source else "",
        limit=limit,
        rate=bucket.rate(now),
        used_ratio=bucket.used_ratio(now),
        tokens=bucket.meter.tokens(now) if bucket.meter is not None else None,
        amount_total=bucket.counted - before.amount,
        throttled_total=bucket.throttled_total - before.throttled,
        unenforced_total=bucket.unenforced_total - before.unenforced,
        throttle_seconds_total=bucket.throttle_seconds_total - before.throttle_seconds,
        early_total=bucket.early_total - before.early,
        early_seconds_total=bucket.early_seconds_total - before.early_seconds,
        early_seconds_max=bucket.early_seconds_max,
        throttle_left=bucket.throttle_left(now),
        connections=bucket.connections,
        throttled_seconds=bucket.episode.seconds(now),
        unthrottled_seconds=bucket.episode.quiet(now) if bucket.policy.enforce else None,
        addresses=tuple(bucket.episode.addresses),
        group=bucket.resolution.tags.group or "",
        broker=bucket.resolution.tags.broker_text,
    )


def add_growth(tally: Tally, bucket: Bucket) -> None:
    """Add the growth of a bucket's counters since `labelled` changed."""
    before = bucket.shown_before
    tally.amount += bucket.counted - before.amount
    tally.throttled += bucket.throttled_total - before.throttled
    tally.unenforced += bucket.unenforced_total - before.unenforced
    tally.throttle_seconds += bucket.throttle_seconds_total - before.throttle_seconds
    tally.early += bucket.early_total - before.early
    tally.early_seconds += bucket.early_seconds_total - before.early_seconds
    tally.early_seconds_max = max(tally.early_seconds_max, bucket.early_seconds_max)


class UnnamedBuckets:
    """The sum of the buckets without a slot."""

    __slots__ = ("connections", "rate", "tally")

    def __init__(self) -> None:
        self.tally = Tally()
        self.rate = 0.0
        self.connections = 0

    def add(self, bucket: Bucket, now: float) -> None:
        add_growth(self.tally, bucket)
        self.rate += bucket.rate(now)
        self.connections += bucket.connections

    def row(self, kind: QuotaKind, gone: Tally) -> UsageRow:
        """One row for all of them. `gone` has the counters of buckets that were dropped or got a slot."""
        tally = self.tally
        return UsageRow(
            kind=kind.name,
            user=OTHER,
            client_id=OTHER,
            ip="",
            level="",
            source="",
            limit=None,
            rate=self.rate,
            used_ratio=0.0,
            tokens=None,
            amount_total=gone.amount + tally.amount,
            throttled_total=gone.throttled + tally.throttled,
            unenforced_total=gone.unenforced + tally.unenforced,
            throttle_seconds_total=gone.throttle_seconds + tally.throttle_seconds,
            early_total=gone.early + tally.early,
            early_seconds_total=gone.early_seconds + tally.early_seconds,
            early_seconds_max=max(gone.early_seconds_max, tally.early_seconds_max),
            throttle_left=0.0,
            connections=self.connections,
            throttled_seconds=None,
            unthrottled_seconds=None,
            addresses=(),
        )
