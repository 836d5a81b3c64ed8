"""The findings of each report: which rows lead to a sentence, and its numbers."""

import datetime as dt
from typing import Any

import pytest

pytest.importorskip("pyspark")

APP: dict[str, Any] = {"kind": "produce", "user": None, "client_id": "app", "ip": None}
JOB: dict[str, Any] = {"kind": "fetch", "user": "etl", "client_id": "job", "ip": None}
SIZED = {"limit_now": 1024.0, "limit_for_0_percent": 512.0, "demand_estimate": None, "throttled_minutes": 0}
BUSY = {"throttled_fraction": 0.1, "throttled_minutes": 1, "mean_utilisation": 0.8}
EARLY = {"what": "early_sends", "count": 3, "address": "10.0.0.1", "reason": None}
STATE = {"gateway": "weir-0", "enforced": True, "factor": 0.0, "seconds": 90.0, "volume": "/var/kafka", "broker": 2}
PAUSED = STATE | {"reason": "hard_limit"}
UNKNOWN = STATE | {"reason": "unknown", "volume": None, "broker": None}
CHANGE = {"time": dt.datetime(2026, 11, 20, 23, 10), "quota": "user=etl", "before_throttle_ms": 500, "after_throttle_ms": 500}  # noqa: DTZ001
HELD = {"throttled": 9, "throttle_ms": 90_000, "share": 0.75, "noted": 0, "noted_ms": 0}
HOUR = {"date": dt.date(2026, 11, 20), "hour": 22, "kind": "produce", "enforced": True, "p99_ms": 1000}
TOPIC = {"topic": "logs", "reason": "quota", "enforced": True, "rejections": 2, "bytes": 2048.0}
OWNER = {"kind": "produce", "owner_type": "user", "owner": "etl"}
SHARE = {"kind": "produce", "short_minutes": 0, "borrowed_minutes": 30, "borrowed_amount": 0.0}
PAIR = {"user": None, "client_id": "app", "by_user": "etl", "by_client_id": None, "minutes": 5, "by_share": 0.9}


CASES: list[tuple[str, list[dict[str, Any]], list[str]]] = [
    (
        "top_throttled",
        [APP | HELD, JOB | HELD | {"throttle_ms": 30_000}],
        ["2 entities were throttled for 2 min 00 s in total; client-id=app (produce) has 75.0 % of this time."],
    ),
    (
        "top_throttled",
        [APP | HELD | {"throttled": 0, "throttle_ms": 0, "noted": 4, "noted_ms": 1500}],
        ["Weir would have throttled 1 entity for 1.5 s, but did not enforce the quotas."],
    ),
    ("throttle_percentiles", [HOUR], []),
    (
        "throttle_percentiles",
        [HOUR | {"p99_ms": 2000}, HOUR | {"kind": "fetch", "p99_ms": 4000}, HOUR | {"enforced": False, "p99_ms": 9000}],
        [
            "The 99th percentile of throttle times exceeded 1.0 s in 1 hour; the longest was 4.0 s (fetch, 2026-11-20 22:00).",
        ],
    ),
    ("utilisation", [APP | BUSY], []),
    (
        "utilisation",
        [APP | BUSY | {"throttled_fraction": 0.5, "throttled_minutes": 6}, JOB | BUSY | {"mean_utilisation": 0.95}],
        [
            "1 entity was throttled in more than 10 % of the active minutes, client-id=app (produce) in 6 minutes.",
            "1 other entity used more than 80 % of the quota on average, user=etl, client-id=job (fetch) 95.0 %.",
        ],
    ),
    (
        "noisy_neighbours",
        [PAIR, PAIR | {"by_user": "other", "minutes": 2}],
        [
            "1 client was slowed while others used more: client-id=app in 5 minutes, beside user=etl with 90.0 % of the bytes.",
        ],
    ),
    ("right_sizing", [APP | SIZED], []),
    (
        "right_sizing",
        [
            APP | SIZED | {"demand_estimate": 2048.0, "throttled_minutes": 3},
            APP | SIZED | {"limit_for_0_percent": 100.0},
            JOB | SIZED | {"limit_now": None},
        ],
        [
            "1 entity has an estimated demand above 1.1 times the limit: client-id=app (produce), 2.00 KiB/s for 1.00 KiB/s.",
            "1 entity has a limit of more than 10 times the busiest minute.",
            "1 entity has no limit.",
        ],
    ),
    ("mutations", [JOB | {"throttled": 0, "throttle_ms": 0}], []),
    (
        "mutations",
        [JOB | {"throttled": 3, "throttle_ms": 61_000}],
        ["1 entity was throttled for 1 min 01 s by the quota on mutations; user=etl, client-id=job had 3 throttles."],
    ),
    (
        "topics",
        [TOPIC, TOPIC | {"topic": "clicks"}, TOPIC | {"enforced": False}],
        [
            "4 Produce requests with 4.00 KiB to 2 topics were rejected, most bytes to logs (reason: quota).",
            "2 Produce requests with 2.00 KiB to 1 topic would have been rejected, most bytes to logs (reason: quota).",
        ],
    ),
    ("volumes", [STATE | {"factor": 1.0}], []),
    (
        "volumes",
        [PAUSED, PAUSED | {"gateway": "weir-1", "seconds": 3.0}],
        [
            "A full disk slowed or paused producers 2 times at 2 gateways, up to 1 min 30 s: /var/kafka of broker 2.",
        ],
    ),
    (
        "volumes",
        [UNKNOWN, UNKNOWN | {"enforced": False, "seconds": 3.0}, PAUSED | {"seconds": 2.0}],
        [
            "A full disk slowed or paused producers 1 time at 1 gateway, up to 2.0 s: /var/kafka of broker 2.",
            "Unknown disk usage slowed or paused producers 1 time at 1 gateway, up to 1 min 30 s.",
            "Unknown disk usage would have slowed or paused producers 1 time at 1 gateway, up to 3.0 s.",
        ],
    ),
    (
        "client_manners",
        [APP | EARLY, APP | EARLY | {"what": "connections_rejected", "count": 7, "reason": "max_per_ip"}],
        [
            "1 entity sent 3 requests before the throttle time was over, client-id=app (produce) 3.",
            "7 connections from 1 address had to be closed, most often from 10.0.0.1 (reason: max_per_ip).",
        ],
    ),
    (
        "client_manners",
        [JOB | EARLY | {"what": "connections_rejected", "count": 2, "reason": "max_per_user", "user": "etl"}],
        ["2 connections from 1 address had to be closed, most often from user etl at 10.0.0.1 (reason: max_per_user)."],
    ),
    (
        "shadow_limits",
        [
            APP | {"throttled": 4, "throttle_ms": 9_000, "delayed_fraction": 0.9},
            JOB | {"throttled": 2, "throttle_ms": 1_000, "delayed_fraction": 0.5},
            JOB | {"throttled": 0, "throttle_ms": 0, "delayed_fraction": 0.0},
        ],
        [
            "2 shadow limits would have throttled for 10.0 s; client-id=app (produce) would have waited 90.0 % of its time.",
            "1 shadow limit would have throttled nobody.",
        ],
    ),
    (
        "chargeback",
        [
            OWNER | {"date": dt.date(2026, 11, 20), "used_bytes": 3072},
            OWNER | {"date": dt.date(2026, 11, 20), "used_bytes": 1024, "owner_type": "unowned", "owner": ""},
            OWNER | {"date": dt.date(2026, 11, 20), "used_bytes": None, "owner_type": "group", "owner": "team"},
            OWNER | {"date": dt.date(2026, 11, 20), "used_bytes": None, "owner_type": "no group", "owner": ""},
        ],
        ["Nobody owns 25.0 % of all bytes: 1.00 KiB on 1 day."],
    ),
    ("chargeback", [OWNER | {"date": dt.date(2026, 11, 20), "used_bytes": 3072}], []),
    (
        "trend",
        [
            OWNER | {"month": dt.date(2026, 11, 1), "used_bytes": 3072, "before_bytes": 1024, "change_fraction": 2.0},
            OWNER | {"month": dt.date(2026, 11, 1), "used_bytes": 1536, "before_bytes": 1024, "change_fraction": 0.5},
            OWNER | {"month": dt.date(2026, 11, 1), "used_bytes": None, "change_fraction": 9.0, "owner_type": "group"},
            OWNER | {"month": dt.date(2026, 12, 1), "used_bytes": 0, "before_bytes": 4608, "change_fraction": -1.0},
        ],
        ["1 owner grew by more than 50 % in 2026-11: produce: user=etl by 200.0 % to 3.00 KiB."],
    ),
    ("groups", [SHARE | {"group": "night"}], []),
    (
        "groups",
        [
            SHARE | {"group": "pay", "short_minutes": 2},
            SHARE | {"group": "pay", "short_minutes": 1},
            SHARE | {"group": "web", "short_minutes": 1},
            SHARE | {"group": "batch", "borrowed_minutes": 31, "borrowed_amount": 36 * 1024.0 * 100},
        ],
        [
            "2 groups waited without getting the guarantee; group=pay (produce) in 2 minutes of an hour.",
            "1 group borrowed in most minutes of an hour; group=batch (produce) used 1.00 KiB/s above its entitlement.",
        ],
    ),
    ("config_changes", [CHANGE], []),
    (
        "config_changes",
        [CHANGE, CHANGE | {"after_throttle_ms": 2500}],
        [
            "More throttle time followed 1 of 2 changes: 2.0 s more in the hour after 2026-11-20 23:10 (user=etl).",
        ],
    ),
]


@pytest.mark.parametrize(("name", "rows", "sentences"), CASES)
def test_rows_lead_to_findings(name: str, rows: list[dict[str, Any]], sentences: list[str]) -> None:
    from gateway.reports import all_reports

    findings = all_reports()[name].findings(rows)
    assert [finding.text for finding in findings] == sentences
    assert all(finding.advice.endswith(".") for finding in findings)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (356_400, "4 d 3 h")],
)
def test_duration_has_two_units(seconds: float, text: str) -> None:
    from gateway.reports.job.phrases import duration

    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1_048_576.0, "produce", "1.00 MiB/s"),
        (2.5, "controller_mutation", "2.5 partitions/s"),
        (-2048.0, "volume", "-2.00 KiB/s"),
        (1200.0, None, "1,200 units/s"),
    ],
)
def test_rate_has_the_unit_of_its_kind(value: float, kind: str | None, text: str) -> None:
    from gateway.reports.job.phrases import rate

    assert rate(value, kind) == text
