"""The demo's console and its report agree. The quota engine makes the ledger: no broker and no client runs."""

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.events import Event
from gateway.features.ledger.fold import ThrottleFolds
from gateway.features.ledger.usage_sampler import UsageSampler
from gateway.proxy.wire import Origin
from gateway.quotas.bucket import Bucket
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import ClientQuotaEntity, EntityQuota
from gateway.quotas.meter import Window
from gateway.quotas.settings import QuotaSettings
from gateway.steps import at_once
from loadtest.demo.clients import ROLES, Role
from loadtest.demo.totals import Total, ledger_events, totals
from loadtest.scenarios.ledger.files import write_events
from protocol.api_keys import ApiKey
from tests.gateway.quotas.engines import bucket_of
from tests.gateway.reports.conftest import SPARK
from tests.gateway.reports.html import Html

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW, WALL = 1_000.0, 1_767_225_620.0
SECONDS = 75
"""The run covers two minutes of the clock in part, and one as a whole."""
STEP = 0.025
REQUEST = 65_000


def quota(role: Role) -> EntityQuota:
    key = "producer_byte_rate" if role.kind == "produce" else "consumer_byte_rate"
    return EntityQuota(ClientQuotaEntity(None, role.name), {key: role.quota})


def run_demo() -> tuple[dict[Role, Bucket], list[Event]]:
    """Let the demo's clients use their quotas on a simulated clock. Return their buckets and the ledger's events."""
    engine = QuotaEngine(QuotaSettings(tuple(map(quota, ROLES)), window=Window(2, 1.0)), NOW)
    buckets = {role: bucket_of(engine, role.kind, "", role.name, NOW) for role in ROLES}
    folds, sampler = ThrottleFolds(), UsageSampler(WALL)
    free_at = dict.fromkeys(ROLES, NOW)
    events: list[Event] = []
    for step in range(int(SECONDS / STEP)):
        now = NOW + step * STEP
        for role, bucket in buckets.items():
            if now < free_at[role]:
                continue
            verdict = bucket.charge(REQUEST, now)
            paced = now + REQUEST / role.wants if role.wants else now
            free_at[role] = max(paced, now + verdict[0])
            if verdict[0]:
                api = ApiKey.PRODUCE if role.kind == "produce" else ApiKey.FETCH
                folds.throttled(Origin("127.0.0.1", 0), api, bucket, REQUEST, verdict, now)
        if step % int(1 / STEP) == 0:
            engine.tick(now)
            events += folds.take("demo", now, WALL + now - NOW)
            events += at_once(sampler.take("demo", engine.buckets(), WALL + now - NOW))
    end = NOW + SECONDS
    return buckets, [
        *events,
        *folds.take("demo", end, WALL + SECONDS),
        *at_once(sampler.take("demo", engine.buckets(), WALL + SECONDS, last=True)),
    ]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[Role, Bucket], Path]:
    path = tmp_path_factory.mktemp("demo-ledger")
    buckets, events = run_demo()
    write_events(path, events)
    return buckets, path


@pytest.fixture(scope="module")
def found(ledger: tuple[dict[Role, Bucket], Path]) -> list[Total]:
    return totals(ROLES, ledger_events(ledger[1]))


def test_totals_match_the_gateways_counters(ledger: tuple[dict[Role, Bucket], Path], found: list[Total]) -> None:
    for total in found:
        bucket = ledger[0][total.role]
        assert (total.amount, total.throttled) == (bucket.amount_total, bucket.throttled_total)
        assert abs(total.throttle_seconds - bucket.throttle_seconds_total) <= bucket.throttled_total / 1000
        assert 0 <= SECONDS - total.active_seconds <= 2, "a minute ends between two ticks"
    well_behaved, greedy, reader = found
    assert well_behaved.throttled == 0
    assert min(greedy.throttled, reader.throttled) > 100
    assert min(greedy.used, reader.used) > 0.99


def test_total_without_use_is_shown() -> None:
    assert (
        totals(ROLES[:1], [])[0].text()
        == "  well-behaved  0 B in 0.0 active s, 0.0 % of 1.00 MiB/s: 0 throttles, 0.0 s of throttle time"
    )


class TestReport:
    pytestmark = SPARK

    def test_report_and_console_agree_on_each_figure(
        self, spark: "SparkSession", ledger: tuple[dict[Role, Bucket], Path], found: list[Total], tmp_path: Path
    ) -> None:
        html = _report(spark, ledger[1], tmp_path)
        for total in found:
            used = html.tables["utilisation"].row(entity=f"client-id={total.role.name}", quota_kind=total.role.kind)
            throttled = (
                html.tables["top_throttled"].row(entity=f"client-id={total.role.name}", quota_kind=total.role.kind)
                if total.throttled
                else {"throttles": "0", "throttle time (s)": "0.0"}
            )
            use, seconds, share = used["use"], used["active time (s)"], used["mean use of quota (%)"]
            throttles, time = throttled["throttles"], throttled["throttle time (s)"]
            assert total.text() == (
                f"  {total.role.name:<13} {use} in {seconds} active s, {share} % of {used['limit']}:"
                f" {throttles} throttles, {time} s of throttle time"
            )


def _report(spark: "SparkSession", ledger: Path, out: Path) -> Html:
    """Make a page of the two reports that have the console's figures."""
    from gateway.reports import all_reports
    from gateway.reports.job.overview import Overview
    from gateway.reports.job.page import page
    from gateway.reports.job.period import Period
    from gateway.reports.job.refresh import refresh
    from gateway.reports.job.write import MadeReport

    run = refresh(spark, str(ledger), str(out), Period(), 24, lambda messages: None)
    made = []
    for name in ("utilisation", "top_throttled"):
        report = all_reports()[name]
        rows = [row.asDict() for row in report.build(run.tables).collect()]
        made.append(MadeReport(report, list(rows[0]), rows, len(rows)))
    return Html(page(run, Overview([], []), made, dt.datetime(2026, 11, 21, tzinfo=dt.UTC)))
