"""The sums of buckets that share a row."""

from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import OTHER, ClientQuotaEntity, EntityQuota
from gateway.quotas.kinds.produce import KIND as PRODUCE
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.snapshot import Tally
from gateway.quotas.usage_rows import UnnamedBuckets, add_growth
from tests.gateway.quotas.engines import bucket_of


def test_growth_since_a_label_changed_is_added():
    quota = EntityQuota(ClientQuotaEntity(client_id="etl"), {"producer_byte_rate": 1_000.0})
    bucket = bucket_of(QuotaEngine(QuotaSettings((quota,), enforce=False), 0.0), "produce", "", "etl", 0.0)
    bucket.charge(10_500, 0.0)
    bucket.note_early(0.25)
    bucket.shown_before = bucket.tally()
    bucket.charge(1_500, 0.0)
    bucket.note_early(0.125)
    sums = Tally()
    for _ in range(2):
        add_growth(sums, bucket)
    assert (sums.amount, sums.throttled, sums.unenforced, sums.early) == (3_000, 2, 2, 2)
    assert (sums.throttle_seconds, sums.early_seconds, sums.early_seconds_max) == (3.0, 0.25, 0.25)


def test_row_of_the_unnamed_adds_those_that_are_gone():
    counters = ("amount", "throttled", "unenforced", "throttle_seconds", "early", "early_seconds")
    gone, rest = Tally(), UnnamedBuckets()
    for tally, unit in ((gone, 1), (rest.tally, 10)):
        for place, name in enumerate(counters):
            setattr(tally, name, unit * (place + 1))
        tally.early_seconds_max = float(unit)
    rest.rate, rest.connections = 2.5, 4
    row = rest.row(PRODUCE, gone)
    assert (row.amount_total, row.throttled_total, row.unenforced_total, row.throttle_seconds_total) == (11, 22, 33, 44)
    assert (row.early_total, row.early_seconds_total, row.early_seconds_max) == (55, 66, 10.0)
    assert (row.rate, row.connections, row.used_ratio, row.throttle_left) == (2.5, 4, 0.0, 0.0)
    assert (row.kind, row.user, row.client_id, row.limit, row.tokens) == ("produce", OTHER, OTHER, None, None)
