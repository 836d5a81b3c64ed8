"""The replay of minutes equals the gateway's own token bucket, simulated in plain Python."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from gateway.quotas.bucket import LEAST_DELAY
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityQuota
from gateway.quotas.groups import Group, GroupRule
from gateway.quotas.settings import QuotaSettings
from gateway.quotas.token_bucket import TokenBucket
from gateway.reports.what_if.targets import WhatIfQuotas
from tests.gateway.reports.conftest import SPARK, Run
from tests.gateway.reports.scenario import BULK, MINUTE, SECOND_APP, STEADY, VICTIM, Bucket, uses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

STEPS = 4
"""Steps of the simulation in a second."""


@dataclass(frozen=True)
class Minute:
    """Units that a client used in `seconds` active seconds of the minute `at`."""

    at: int
    amount: float
    seconds: float


@dataclass
class Debts:
    """The figures of a simulated bucket."""

    throttled_minutes: int = 0
    catch_up_minutes: int = 0
    throttle_seconds: float = 0.0
    delay_max_seconds: float = 0.0
    behind_seconds: float = 0.0


def simulated(minutes: Sequence[Minute], bucket: TokenBucket, end: int) -> Debts:
    """Charge each minute's units evenly in its first seconds, and look at the delay in every step."""
    debts = Debts()
    used = {minute.at: minute for minute in minutes}
    for at in range(minutes[0].at, end + 1):
        minute = used.get(at)
        active = 0 if minute is None else round(minute.seconds * STEPS)
        delays = [bucket.delay(at * 60.0)]
        for step in range(60 * STEPS):
            now = at * 60.0 + step / STEPS
            if minute is not None and step < active:
                bucket.charge(minute.amount / active, now)
            delays.append(bucket.delay(now + 1 / STEPS))
        if max(delays) >= LEAST_DELAY:
            debts.throttled_minutes += 1
            debts.catch_up_minutes += minute is None
        debts.throttle_seconds += sum(delay >= LEAST_DELAY for delay in delays[1:]) / STEPS
        debts.delay_max_seconds = max(debts.delay_max_seconds, *delays)
        debts.behind_seconds = delays[-1]
    return debts


def random_minutes(random: Random, limit: float) -> list[Minute]:
    """Quiet and busy times with gaps. Some minutes are far above the limit, some give units back."""
    minutes, at = [], 1000
    while at < 1110:
        at += 1 if random.random() < 0.7 else random.randrange(1, 12)
        seconds = random.choice((1, 5, 20, 40, 60, 60, 60))
        amount = random.choice((-5, 0, 10, 30, 50, 60, 61, 66, 90, 200)) * limit
        minutes.append(Minute(at, amount, seconds))
    return minutes


def test_replay_equals_the_token_bucket(spark: "SparkSession") -> None:
    from gateway.reports.what_if.replay import minutes_of_targets, replayed, totals

    random = Random(16)
    buckets = {number: (random.choice((1.0, 100.0, 1e6)), random.choice((1.0, 10.0, 30.0))) for number in range(30)}
    cases = {number: random_minutes(random, limit) for number, (limit, _) in buckets.items()}
    end = 1130
    rows = [(number, minute.at, minute.amount, int(minute.seconds)) for number, minutes in cases.items() for minute in minutes]
    ledger = spark.createDataFrame(rows, "entity long, at int, amount double, seconds int").selectExpr(
        "entity", "date_from_unix_date(cast(at div 1440 as int)) as date", "at % 1440 div 60 as hour", "at % 60 as minute",
        "amount", "seconds", "0L as throttled", "0L as noted", "0L as throttle_ms",
    )  # fmt: skip
    limits = [(number, number, limit, limit * burst) for number, (limit, burst) in buckets.items()]
    targets = spark.createDataFrame(limits, "entity long, target long, limit double, burst double")
    of_targets = minutes_of_targets(ledger, targets.select("entity", "target"))
    replay = replayed(of_targets.join(targets.drop("entity"), "target"), end)
    found = {row.target: row for row in totals(replay).collect()}
    expected = {
        number: simulated(minutes, TokenBucket(limit, burst, minutes[0].at * 60.0), end)
        for number, minutes in cases.items()
        for limit, burst in [buckets[number]]
    }
    assert sum(debts.throttled_minutes for debts in expected.values()) > 1000
    assert sum(debts.catch_up_minutes for debts in expected.values()) > 100
    for number, debts in expected.items():
        row = found[number]
        assert row.minutes == len(cases[number])
        assert (row.throttled_minutes, row.catch_up_minutes) == (debts.throttled_minutes, debts.catch_up_minutes)
        assert row.delay_max_seconds == pytest.approx(debts.delay_max_seconds, abs=0.001)
        assert row.behind_seconds == pytest.approx(debts.behind_seconds, abs=0.001)
        # The simulation sees the beginning and the end of a debt only at its steps.
        assert row.throttle_seconds == pytest.approx(debts.throttle_seconds, abs=debts.throttled_minutes / STEPS + 0.01)


FILE = (
    EntityQuota(ClientQuotaEntity(client_id="steady"), {"producer_byte_rate": 560}),
    EntityQuota(ClientQuotaEntity(user="greedy"), {"producer_byte_rate": 1200}),
    EntityQuota(ClientQuotaEntity(user=DEFAULT), {"consumer_byte_rate": 160_000}),
)
READERS = Group("readers", (GroupRule(user="bulk"), GroupRule(user="vic*")), {"consumer_byte_rate": 171_000})


@pytest.fixture(scope="module")
def what_if(spark: "SparkSession", report: Run) -> Mapping[tuple[Any, ...], Any]:
    from gateway.reports.what_if.report import what_if_report

    settings = QuotaSettings(quotas=(*FILE, READERS.quota), groups=(READERS,))
    made = what_if_report(spark, WhatIfQuotas(settings))
    rows = made.build(report.found.tables).collect()
    assert set(made.columns) <= set(rows[0].asDict())
    dicts = [row.asDict() for row in rows]
    assert made.plots(dicts)
    assert [finding.text.split(" ")[0] for finding in made.findings(dicts)] == ["The", "The"]
    return {(row.kind, row.user, row.client_id, row.group): row for row in rows}


def minutes_of(*buckets: Bucket) -> list[Minute]:
    """The scenario's use of some buckets together, as if they were active independently."""
    amounts: dict[int, float] = defaultdict(float)
    seconds: dict[int, dict[Bucket, int]] = defaultdict(dict)
    for use in uses():
        if use.bucket in buckets:
            at = use.at // MINUTE
            amounts[at] += use.amount
            seconds[at][use.bucket] = max(seconds[at].get(use.bucket, 0), use.seconds or 60)
    return [Minute(at, amounts[at], together(seconds[at].values())) for at in sorted(amounts)]


def together(seconds: Iterable[int]) -> float:
    idle = 1.0
    for each in seconds:
        idle *= 1 - each / 60
    return 60 * (1 - idle)


@pytest.mark.parametrize(
    ("entity", "limit", "buckets"),
    [
        (("produce", None, "steady", None), 560, (STEADY,)),
        (("fetch", "bulk", None, None), 160_000, (BULK, SECOND_APP)),
        (("fetch", None, None, "readers"), 171_000, (BULK, SECOND_APP, VICTIM)),
    ],
)
def test_scenario_would_have_been_throttled_like_this(
    what_if: Mapping[tuple[Any, ...], Any], entity: tuple[Any, ...], limit: int, buckets: tuple[Bucket, ...]
) -> None:
    """The second bucket is that of a user, and has the use of two client-ids. The third is that of a group."""
    row, minutes = what_if[entity], minutes_of(*buckets)
    debts = simulated(minutes, TokenBucket(limit, 10.0, minutes[0].at * 60.0), minutes[-1].at)
    assert (row.verdict, row.limit, row.minutes) == ("limited", limit, len(minutes))
    assert (row.throttled_minutes, row.catch_up_minutes) == (debts.throttled_minutes, debts.catch_up_minutes)
    assert 0 < row.throttled_minutes < row.minutes
    assert row.delay_max_seconds == pytest.approx(debts.delay_max_seconds, abs=0.001)
    assert row.throttled_fraction == round(row.throttled_minutes / row.minutes, 4)


def test_throttled_minutes_have_an_estimated_demand(what_if: Mapping[tuple[Any, ...], Any]) -> None:
    """The ledger throttled greedy in 70 minutes: at its limit of 1000 bytes/s it wanted more than the file's 1200."""
    row = what_if["produce", "greedy", None, None]
    assert (row.recorded_minutes, row.estimated_minutes) == (70, 70)
    assert row.throttled_minutes >= 110  # from 23:10 on the client used 1667 bytes/s
    assert row.quota == "user=greedy"


def test_verdict_tells_what_the_ledger_does_not_know(what_if: Mapping[tuple[Any, ...], Any]) -> None:
    verdicts = {entity: row.verdict for entity, row in what_if.items()}
    assert verdicts["fetch", None, "", None] == "undecided"
    assert verdicts["fetch", "<other>", "client-id=<default>", None] == "undecided"
    assert verdicts["controller_mutation", "admin", None, None] == "unlimited"
    assert verdicts["produce", "trial", "", None] == "unlimited"
    assert all(row.throttled_minutes is None for row in what_if.values() if row.verdict != "limited")
