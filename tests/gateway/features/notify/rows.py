"""Rows of usage for episodes."""

from typing import Any

from gateway.quotas.snapshot import UsageRow

_ROW: dict[str, Any] = {
    "kind": "produce",
    "user": "alice",
    "client_id": "",
    "ip": "",
    "level": "user=alice",
    "source": "file",
    "limit": 1_048_576.0,
    "rate": 900_000.0,
    "used_ratio": 0.5,
    "tokens": 1.0,
    "amount_total": 1,
    "throttled_total": 0,
    "unenforced_total": 0,
    "throttle_seconds_total": 0.0,
    "early_total": 0,
    "early_seconds_total": 0.0,
    "early_seconds_max": 0.0,
    "throttle_left": 0.0,
    "connections": 1,
    "throttled_seconds": None,
    "unthrottled_seconds": None,
    "addresses": (),
}


def used(ratio: float, **values: Any) -> UsageRow:
    return UsageRow(**{**_ROW, "used_ratio": ratio, **values})


def throttled(total: int, **values: Any) -> UsageRow:
    """An entity in a mute, after `total` throttled requests."""
    return used(1.2, throttled_total=total, throttle_left=1.5, throttled_seconds=3.0, **values)
