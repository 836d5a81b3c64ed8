"""The rows of `/api/quotas` and `/api/throttles`: the use of a bucket, with the quota that binds and its place."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from gateway.clock import iso
from gateway.config.places import Places
from gateway.quotas.kinds import KINDS
from gateway.quotas.snapshot import UsageRow
from gateway.steps import Steps, drained

_FIELDS: Final = tuple(field.name for field in fields(UsageRow))

EARLY: Final = (
    "Too early: requests that arrived before the throttle time of the previous response was over. Weir does not read the"
    " connection until then. Requests already on their way count too: a few, by milliseconds, are normal for every client."
    " Many, by seconds, mean that the client ignores throttle_time_ms (KIP-219)."
)


def described(rows: Iterable[UsageRow], places: Places, wall: float) -> Steps[list[dict[str, Any]]]:
    """The rows as JSON values. `wall` is the time of the rows, in seconds since 1970."""
    found: list[dict[str, Any]] = []
    for row in rows:
        kind = KINDS[row.kind]
        found.append(
            {
                **{name: getattr(row, name) for name in _FIELDS},
                "key": kind.config_key,
                "unit": kind.limit_unit,
                "set_in": places.of_entity(row.level, row.source),
                "throttled_since": None if row.throttled_seconds is None else iso(wall - row.throttled_seconds),
            }
        )
        yield
    return found


def undescribed(rows: list[Mapping[str, Any]]) -> Steps[list[UsageRow]]:
    """The use of buckets from such rows. Empties `rows`."""
    found: list[UsageRow] = []
    for row in drained(rows):
        values = {name: row[name] for name in _FIELDS}
        found.append(UsageRow(**{**values, "addresses": tuple(values["addresses"])}))
        yield
    return found
