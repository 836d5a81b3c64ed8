"""The clearing of debts: of those that the filter of `POST /api/quotas/forgive` covers, or of all."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gateway.quotas.bucket import LEAST_DELAY, Bucket
from gateway.quotas.entity import MAX_NAME, OTHER, short_name
from gateway.quotas.kinds import CLIENT_KINDS, is_client_kind
from gateway.quotas.meter import Meter

KEYS = ("user", "client-id", "group", "kind")

_SHOWN_NAMES = 10


class DebtFilterError(ValueError):
    """The filter of a request is empty or wrong. The message has key, value and remedy."""


@dataclass(frozen=True, slots=True)
class DebtFilter:
    """The buckets of a user, of a client-id, or of both, or of a group. `kind` None: of every kind."""

    user: str | None = None
    client_id: str | None = None
    group: str | None = None
    kind: str | None = None

    @classmethod
    def parse(cls, values: object) -> "DebtFilter":
        """Read the JSON object of a request, with the keys `KEYS`. Raises DebtFilterError."""
        if not isinstance(values, Mapping) or not values:
            raise DebtFilterError(f"the request names no client: send a JSON object with some of {', '.join(KEYS)}")
        for key, value in values.items():
            if key not in KEYS:
                raise DebtFilterError(f"{key!r}: there is no such key: use some of {', '.join(KEYS)}")
            if not isinstance(value, str):
                raise DebtFilterError(f"{key}: {value!r} is no name: give a string")
        user, client_id, group, kind = (values.get(key) for key in KEYS)
        if user is None and client_id is None and group is None:
            raise DebtFilterError("neither user nor client-id is given, and no group: name the one whose debt is to be cleared")
        if group is not None and (user is not None or client_id is not None):
            raise DebtFilterError(f"group: {group!r} can't be combined with user or client-id: clear their debts one by one")
        if kind is not None and not is_client_kind(kind):
            raise DebtFilterError(f"kind: there is no {kind!r}: use one of {', '.join(CLIENT_KINDS)}")
        return cls(user, client_id, group, kind)

    def check_group(self, names: Collection[str]) -> None:
        """Raises DebtFilterError if the filter's group is none of `names`."""
        if self.group is None or self.group in names:
            return
        known = ", ".join(list(names)[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
        remedy = f"use one of {known}" if known else "the config file has no groups, so name a user or a client-id"
        raise DebtFilterError(f"group: there is no {self.group!r} in quotas.groups: {remedy}")

    def body(self) -> bytes:
        """The request's JSON object."""
        values = zip(KEYS, (self.user, self.client_id, self.group, self.kind), strict=True)
        return json.dumps({key: value for key, value in values if value is not None}).encode()

    def covers(self, bucket: Bucket) -> bool:
        """True if the bucket belongs to the client or group. A missing part of the filter matches every bucket.

        A user matches no bucket without a user, and a client-id none without a client-id. `<other>` matches the buckets that
        clients past `quotas.max_entities` share.
        """
        tags = bucket.resolution.tags
        user, client_id = (OTHER, OTHER) if tags.overflow else tags.shown
        return (
            self.kind in (None, bucket.kind.name, bucket.kind.name.partition(".")[0])
            and tags.group == self.group
            and _matches(self.user, tags.user, user)
            and _matches(self.client_id, tags.client_id, client_id)
        )


def _matches(wanted: str | None, stored: str | None, displayed: str) -> bool:
    """True if there is no filter, or it equals the displayed name, or its shortened form is the stored name."""
    if wanted is None:
        return True
    return stored is not None and (wanted == displayed or (len(wanted) > MAX_NAME and short_name(wanted) == stored))


@dataclass(frozen=True, slots=True)
class ClearedDebt:
    """A bucket's cleared debt. `seconds` is the throttle time that its clients are spared."""

    kind: str
    user: str
    client_id: str
    seconds: float
    group: str = ""
    broker: str = ""


def clear_debts(buckets: Iterable[Bucket], wanted: DebtFilter, now: float) -> tuple[set[Bucket], list[ClearedDebt]]:
    """Clear the debts of the buckets that `wanted` covers, at this gateway only.

    Returns all covered buckets, whose clients have to be unmuted, and the cleared debts. A bucket without a meter has no limit.
    """
    covered = {bucket for bucket in buckets if bucket.meter is not None and wanted.covers(bucket)}
    cleared = []
    for bucket in covered:
        if bucket.meter is not None and (seconds := bucket.meter.delay(now)) >= LEAST_DELAY:
            bucket.meter.forgive(now)
            bucket.episode.forgiven(now)
            tags = bucket.resolution.tags
            cleared.append(ClearedDebt(bucket.kind.name, *tags.shown, seconds, tags.group or "", tags.broker_text))
    return covered, sorted(cleared, key=lambda debt: (-debt.seconds, debt.kind, debt.user, debt.client_id))


def forgive_all(meters: Iterable[Meter | None], now: float) -> None:
    for meter in meters:
        if meter is not None:
            meter.forgive(now)
