"""Throttling begins at a `weir_quota_used_ratio` of 1.0, for every algorithm and for gateways that share a quota."""

import time

import pytest

from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.usage_rows import usage_row
from gateway.steps import at_once
from tests.gateway.features.sharing.test_member import INTERVAL, LIMIT, Fleet, begun
from tests.gateway.features.sharing.test_shared_usage import Topics
from tests.gateway.proxy import messages as m
from tests.gateway.quotas.engines import bucket_of
from tests.weir_process import wait_until

QUOTA = 100_000
SHORT = {"window": {"samples": 2, "seconds": 1}, "entities": [{"client-id": "etl", "producer_byte_rate": QUOTA}]}
"""A quota with a burst of one second."""


def ratio(bucket: Bucket, now: float) -> float:
    return usage_row(bucket, now).used_ratio


def test_burst_within_quota_stays_below_one(broker, start_weir, connect):
    """Twice the quota for the length of the burst: no request is throttled, so the ratio stays below 1."""
    weir = start_weir(broker.bootstrap_servers, quotas=SHORT)
    client = connect(weir)
    for number in range(4):
        client.ask(m.produce(number, size=QUOTA * 2 // 5))
        time.sleep(0.2)
    assert weir.metric("weir_throttled_requests_total", kind="produce") == 0
    assert weir.metric("weir_quota_used_ratio", kind="produce") < 1.0


def test_client_in_debt_shows_at_least_one(broker, start_weir, connect):
    """The ratio stays above 1 after the use behind the debt has left the window."""
    entity = {"client-id": "etl", "producer_byte_rate": QUOTA // 10}
    weir = start_weir(broker.bootstrap_servers, quotas=SHORT | {"entities": [entity]})
    connect(weir).ask(m.produce(1, size=6 * QUOTA))  # a debt of a minute
    wait_until(lambda: weir.metric("weir_quota_usage", kind="produce") == 0.0, "the window is over")
    assert weir.metric("weir_quota_tokens", kind="produce") < 0
    assert weir.metric("weir_quota_used_ratio", kind="produce") >= 1.0


@pytest.mark.parametrize("algorithm", ["token_bucket", "window"])
def test_throttling_begins_at_one(algorithm):
    """Sequential requests, with pauses and without: ratios over 1.0 are throttled, others are not."""
    quota = EntityQuota(ClientQuotaEntity("alice"), {"producer_byte_rate": 1_000.0})
    engine = QuotaEngine(QuotaSettings((quota,), algorithm=algorithm), 0.0)
    bucket = bucket_of(engine, "produce", "alice", "etl", 0.0)
    now = 0.0
    for step in range(1, 400):
        now += 0.1 if step % 7 else 2.0
        engine.tick(now)
        delay, _ = bucket.charge(150 + step, now)
        assert (ratio(bucket, now) > 1.0) == (delay > 0.0)
        now += delay


def test_even_flow_near_its_quota_is_shown():
    """The token bucket stays full, but an alert on nearly used quotas can still fire."""
    quota = EntityQuota(ClientQuotaEntity("alice"), {"producer_byte_rate": 1_000.0})
    engine = QuotaEngine(QuotaSettings((quota,)), 0.0)
    bucket = bucket_of(engine, "produce", "alice", "etl", 0.0)
    for second in range(1, 60):
        bucket.charge(900, second - 0.5)
        engine.tick(float(second))
    assert ratio(bucket, 59.0) == pytest.approx(0.9, abs=0.01)


def used_by_four(fleet: Fleet, seconds: float, times: float) -> None:
    """Each of four gateways sends a quarter of `times` the quota and obeys its throttle times."""
    free_at = [fleet.now] * 4
    for _ in range(round(seconds / INTERVAL)):
        for number in range(4):
            if free_at[number] <= fleet.now:
                free_at[number] = fleet.now + fleet.use(number, round(times * LIMIT * INTERVAL / 4))
        fleet.run(INTERVAL)


def test_shared_quota_shows_the_use_of_all():
    fleet = begun(4)
    used_by_four(fleet, 40.0, 1.6)
    assert [fleet.bucket(number).throttled_total > 0 for number in range(4)] == [True] * 4
    assert [ratio(fleet.bucket(number), fleet.now) for number in range(4)] == [pytest.approx(1.0, abs=0.08)] * 4


def test_shared_quota_nearly_used_is_shown():
    fleet = begun(4)
    used_by_four(fleet, 30.0, 0.9)
    assert [ratio(fleet.bucket(number), fleet.now) for number in range(4)] == [pytest.approx(0.9, abs=0.05)] * 4


def test_shared_topics_show_the_rate_of_all():
    fleet = Topics(3)
    for number in range(3):
        fleet.append(number, "hot", 435)
    fleet.run(INTERVAL)
    for quotas in fleet.gateways:
        report = at_once(quotas.report(fleet.now))
        assert report.total.over
        assert report.total.rate > 1.2 * report.total.threshold
        (hot,) = [row for row in report.rows if row.topic == "hot"]
        assert hot.rejected
        assert hot.rate == report.total.rate
