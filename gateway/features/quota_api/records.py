"""The quotas of the API as records of a compacted topic, one record for each entity.

    key:   {"client-id": null, "user": "alice"}                   the entity, null for the default; keys sorted
    value: {"version": 1, "quotas": {"producer_byte_rate": 1e6}}   all its quotas; no value: no quotas

The first `claim` in the log wins: that gateway fills an empty topic from its state file. After the record `settled` the topic
is complete. Without any claim, the first record of an entity settles the topic as well.

    key: migration   value: {"version": 1, "claimed_by": "0f3a..."}, then {"version": 1, "claimed_by": null, "position": 41}

`position` is the `HistoryPosition` of the gateway that filled the topic. Its records have `"restored": true`. A gateway with
a higher position replaces these records, and keeps those of later changes.
"""

import json
from collections import Counter
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gateway.alterations import QuotaApiError
from gateway.features.quota_api.rules import MAX_ENTITIES, checked_entity, parts_of
from gateway.quotas.entity import ClientQuotaEntity, DynamicQuotas

VERSION: Final = 1
CLAIM_SECONDS: Final = 10.0
"""A claim expires after this time."""

SKIPPED: Final = ("damaged", "version", "too_many_entities")
"""Reasons for skipping a record."""

_MIGRATION: Final = b"migration"

Record = tuple[bytes, bytes | None]
"""Key and value."""


class _Saved(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class _Version(_Saved):
    version: int


class _Quotas(_Version):
    restored: bool = False
    quotas: Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=1)]


class _Migration(_Version):
    claimed_by: str | None
    position: int | None = None


_PARTS = TypeAdapter(Annotated[dict[str, str | None], Field(min_length=1)])


def entity_record(entity: ClientQuotaEntity, limits: dict[str, float], *, restored: bool = False) -> Record:
    """The record that replaces all quotas of an entity. Without limits it removes them.

    `restored`: a gateway writes quotas that it knew before the topic was created again.
    """
    key = json.dumps(parts_of(entity), sort_keys=True).encode()
    value = {"version": VERSION, "quotas": limits} | ({"restored": True} if restored else {})
    return key, json.dumps(value, allow_nan=False).encode() if limits else None


def claim(gateway: str) -> Record:
    """The record by which a gateway claims the task of filling the topic."""
    return _MIGRATION, json.dumps({"version": VERSION, "claimed_by": gateway}).encode()


def settled(position: int | None = None) -> Record:
    """The record after which the topic is complete. `position`: that of the gateway that filled it, see `HistoryPosition`."""
    end: dict[str, int | None] = {"version": VERSION, "claimed_by": None}
    return _MIGRATION, json.dumps(end if position is None else end | {"position": position}).encode()


class QuotaRecords:
    """The table of the records read so far. Times are this gateway's monotonic seconds."""

    def __init__(self) -> None:
        self.quotas: dict[ClientQuotaEntity, dict[str, float]] = {}
        self.removed: dict[ClientQuotaEntity, None] = {}
        self.restored: set[ClientQuotaEntity] = set()
        self.origin: int | None = None  # the position of the gateway that filled the topic
        self.settled = False
        self.filled = False  # settled by the gateway that claimed this task
        self.skipped: Counter[str] = Counter()
        self._claim: tuple[str, float] | None = None

    def receive(self, key: bytes | None, value: bytes | None, now: float) -> str | None:
        """Apply the next record. For an unusable record, count and return the reason."""
        reason = self._migration(value, now) if key == _MIGRATION else self._entity(key, value)
        if reason is not None:
            self.skipped[reason] += 1
        return reason

    def claimant(self, now: float) -> str | None:
        """The gateway that is filling the topic, if any."""
        if self._claim is None or now - self._claim[1] > CLAIM_SECONDS:
            return None
        return self._claim[0]

    def _migration(self, value: bytes | None, now: float) -> str | None:
        try:
            record = _Migration.model_validate_json(value or b"")
        except ValidationError:
            return "damaged"
        if record.version != VERSION:
            return "version"
        if record.claimed_by is None:
            self.settled = True
            self.filled |= self._claim is not None
            if record.position is not None:
                self.origin = max(record.position, self.origin or 0)
        elif self.claimant(now) is None:
            self._claim = (record.claimed_by, now)
        return None

    def _entity(self, key: bytes | None, value: bytes | None) -> str | None:
        try:
            entity = checked_entity(_PARTS.validate_json(key or b"", strict=True))
            if value is None:
                self.quotas.pop(entity, None)
                self.restored.discard(entity)
                if len(self.removed) < MAX_ENTITIES:
                    self.removed[entity] = None
                self._settle_unless_claimed()
                return None
            if _Version.model_validate_json(value).version != VERSION:
                return "version"
            record = _Quotas.model_validate_json(value)
        except (ValidationError, QuotaApiError):
            return "damaged"
        if entity not in self.quotas and len(self.quotas) >= MAX_ENTITIES:
            return "too_many_entities"
        self.quotas[entity] = record.quotas
        self.removed.pop(entity, None)
        (self.restored.add if record.restored else self.restored.discard)(entity)
        self._settle_unless_claimed()
        return None

    def _settle_unless_claimed(self) -> None:
        """Settle the topic, unless a gateway is filling it. That gateway may fail before its last batch."""
        if self._claim is None:
            self.settled = True

    def with_missing(self, known: DynamicQuotas, *, newer: bool = False) -> DynamicQuotas:
        """The quotas of the topic, and the known quotas of entities that the topic has neither set nor removed.

        `newer`: `known` is newer than the quotas that another gateway restored, and replaces these as well.
        """
        missing = {entity: limits for entity, limits in known.items() if entity not in self.removed}
        own = {entity: limits for entity, limits in self.quotas.items() if not (newer and entity in self.restored)}
        return {**missing, **own}


def changes(before: DynamicQuotas, after: DynamicQuotas, *, restored: bool = False) -> list[Record]:
    """The records that turn `before` into `after`. `restored` is that of `entity_record`."""
    entities = [entity for entity in {**before, **after} if before.get(entity) != after.get(entity)]
    return [entity_record(entity, dict(after.get(entity, {})), restored=restored) for entity in entities]


def rebased(before: DynamicQuotas, after: DynamicQuotas, now: DynamicQuotas) -> DynamicQuotas:
    """`now` with the differences between `before` and `after` applied."""
    result = dict(now)
    for entity in {**before, **after}:
        old, new = before.get(entity, {}), after.get(entity, {})
        changed = {key for key in {**old, **new} if old.get(key) != new.get(key)}
        if changed:
            kept = {key: limit for key, limit in now.get(entity, {}).items() if key not in changed}
            limits = kept | {key: new[key] for key in changed if key in new}
            result.pop(entity, None)
            if limits:
                result[entity] = limits
    return result
