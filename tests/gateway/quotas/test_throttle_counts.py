"""The counters of throttles: requests that count once, and times that end early."""

import pytest

from gateway.quotas.engine import QuotaEngine, QuotaSettings
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.throttle_counts import count_once, count_wait, end_early, shorten

START = 1_000.0


def bucket_in_debt(*, enforce=True):
    """A bucket with one throttled request, whose throttle time is 20 s."""
    quota = EntityQuota(ClientQuotaEntity(None, "etl"), {"request_rate": 1.0})
    bucket = QuotaEngine(QuotaSettings((quota,), enforce=enforce), START).acquire("request_rate", "alice", "etl", START)
    bucket.charge(int(bucket.capacity()) + 20, START)
    assert (bucket.throttle_seconds, bucket.totals.seconds) == (20.0, 20.0)
    return bucket


def test_shortened_wait_corrects_the_counters():
    bucket = bucket_in_debt()
    shorten(bucket, 20.0, 5.0)
    assert (bucket.throttle_seconds_total, bucket.totals.seconds, bucket.throttled_total) == (5.0, 5.0, 1)
    assert bucket.throttle_left(START) == 20.0, "the debt stays"


def test_wait_counts_as_one_throttle():
    bucket = bucket_in_debt()
    count_wait(bucket, 3.0)
    assert (bucket.throttled_total, bucket.throttle_seconds_total) == (2, 23.0)
    assert (sum(bucket.totals.buckets), bucket.totals.seconds) == (2, 23.0)


@pytest.mark.parametrize("enforce", [True, False])
def test_request_that_has_waited_counts_once(enforce):
    bucket = bucket_in_debt(enforce=enforce)
    count_once(bucket, (20.0, enforce))
    assert (bucket.throttled_total, bucket.unenforced_total, sum(bucket.totals.buckets)) == (0, 0, 0)
    assert (bucket.throttle_seconds_total, bucket.totals.seconds) == (20.0, 20.0)


def test_early_end_is_left_out():
    bucket = bucket_in_debt()
    end_early(bucket, 15.0)
    assert (bucket.row(START).throttle_seconds_total, bucket.tally().throttle_seconds) == (5.0, 5.0)


def test_shown_throttle_time_never_falls():
    """Prometheus takes a counter that falls for one that begins again."""
    bucket = bucket_in_debt()
    assert bucket.row(START).throttle_seconds_total == 20.0
    end_early(bucket, 15.0)
    assert bucket.row(START).throttle_seconds_total == 20.0
    count_wait(bucket, 18.0)
    assert bucket.row(START).throttle_seconds_total == 23.0
