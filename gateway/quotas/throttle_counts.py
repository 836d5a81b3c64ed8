"""A bucket's counters of throttles: each throttled request counts once, with the time that it waits. Times are in seconds."""

from gateway.quotas.bucket import Bucket, QuotaVerdict


def count_wait(bucket: Bucket, seconds: float) -> None:
    """Count a connection's first request, which has waited unforwarded for that time."""
    bucket.throttled_total += 1
    bucket.throttle_seconds += seconds
    bucket.totals.note(seconds)


def count_once(bucket: Bucket, verdict: QuotaVerdict) -> None:
    """Take the count of a verdict back, as its request has waited before and is counted already. The time stays."""
    bucket.throttled_total -= 1
    if not verdict[1]:
        bucket.unenforced_total -= 1
    bucket.totals.merge(verdict[0])


def shorten(bucket: Bucket, delay: float, shorter: float) -> None:
    """Correct the counters at once, as a client waits for a shorter time than its verdict says."""
    bucket.throttle_seconds += shorter - delay
    bucket.totals.correct(delay, shorter)


def end_early(bucket: Bucket, seconds: float) -> None:
    """Leave out the rest of a throttle time. `KindTotals` keeps the time that was decided: a histogram must not fall."""
    bucket.throttle_seconds -= seconds


def note_early(bucket: Bucket, seconds: float) -> None:
    """Count a request that came at least so many seconds before the throttle time was over."""
    bucket.early_total += 1
    bucket.early_seconds_total += seconds
    bucket.early_seconds_max = max(bucket.early_seconds_max, seconds)
