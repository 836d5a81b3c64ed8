"""The quotas of the API as records of a compacted topic, one record for each entity.

    key:   {"client-id": null, "user": "alice"}                   the entity, null for the default; keys sorted
    value: {"version": 1, "quotas": {"producer_byte_rate": 1e6}}   all its quotas; no value: no quotas

The first `claim` in the log wins: that gateway fills an empty topic from its state file. After the record `settled` the topic
is complete. Without any claim, the first record of an entity settles the topic as well.

    key: migration   value: {"version": 1, "claimed_by": "0f3a..."},
                     then   {"version": 1, "claimed_by": null, "history": "5c1e...", "position": 41}

`history` and `position` are the `HistoryPosition` of the gateway that filled the topic. Its records have `"restored": 41`. The
records of several such gateways may mix with each other and with later changes. A later change overrides restored records, also
those behind it. Of the restored records, those of the highest position are in effect.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gateway.alterations import QuotaApiError
from gateway.features.quota_api.rules import MAX_ENTITIES, checked_entity
from gateway.quotas.entity import ClientQuotaEntity, DynamicQuotas

VERSION: Final = 1
CLAIM_SECONDS: Final = 10.0
"""A claim expires after this time."""

MAX_ALL_NAMES_BYTES: Final = 64 * 1024 * 1024
"""The maximum size of the names of all entities with quotas and of their quotas' keys; of removed entities the same."""

MAX_VALUE_BYTES: Final = 16 * 1024
"""The maximum size of one entity's quotas. Weir writes some hundred bytes."""

SKIPPED: Final = ("damaged", "version", "too_many_entities")
"""Reasons for skipping a record."""

_MIGRATION: Final = b"migration"
_CHANGED: Final = 1 << 62  # above every position

Record = tuple[bytes, bytes | None]
"""Key and value."""


class _Saved(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class _Version(_Saved):
    version: int


class _Quotas(_Version):
    restored: int | None = None
    quotas: Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=1)]


class _Migration(_Version):
    claimed_by: str | None
    history: str | None = None
    position: int = 0


_PARTS = TypeAdapter(Annotated[dict[str, str | None], Field(min_length=1)])


def entity_record(entity: ClientQuotaEntity, limits: dict[str, float], *, restored: int | None = None) -> Record:
    """The record that replaces all quotas of an entity. Without limits it removes them.

    `restored`: the offset in the history of the gateway that knew these quotas before the topic was created again.
    """
    key = json.dumps(entity.kafka_names(), sort_keys=True).encode()
    value = {"version": VERSION, "quotas": limits} | ({} if restored is None else {"restored": restored})
    return key, json.dumps(value, allow_nan=False).encode() if limits else None


def claim(gateway: str) -> Record:
    """The record by which a gateway claims the task of filling the topic."""
    return _MIGRATION, json.dumps({"version": VERSION, "claimed_by": gateway}).encode()


def settled(history: str | None = None, position: int = 0) -> Record:
    """The record after which the topic is complete. `history` and `position`: those of the gateway that filled the topic."""
    end = {"version": VERSION, "claimed_by": None} | ({} if history is None else {"history": history, "position": position})
    return _MIGRATION, json.dumps(end).encode()


class QuotaRecords:
    """The table of the records read so far. Times are this gateway's monotonic seconds."""

    def __init__(self) -> None:
        self.quotas: dict[ClientQuotaEntity, dict[str, float]] = {}
        self.removed: dict[ClientQuotaEntity, None] = {}
        self.restored: dict[ClientQuotaEntity, int] = {}
        self.history: str | None = None  # None: the history begins in this topic
        self.origin = 0  # the highest position of the gateways that filled the topic
        self.settled = False
        self.concluded = False  # by a record, not only by the first change
        self.filled = False  # settled by the gateway that claimed this task
        self.skipped: Counter[str] = Counter()
        self._claim: tuple[str, float] | None = None
        self._bytes = 0  # of the names in `quotas`
        self._removed_bytes = 0

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
            self.settled = self.concluded = True
            self.filled |= self._claim is not None
            if record.history is not None and self.history in (None, record.history):
                self.history = record.history
                self._go_on_from(record.position)
        elif self.claimant(now) is None:
            self._claim = (record.claimed_by, now)
        return None

    def _entity(self, key: bytes | None, value: bytes | None) -> str | None:
        try:
            entity = checked_entity(_PARTS.validate_json(key or b"", strict=True))
            if value is None:
                self._drop(entity)
                self.restored.pop(entity, None)
                size = _size(entity)
                if (
                    entity not in self.removed
                    and len(self.removed) < MAX_ENTITIES
                    and self._removed_bytes + size <= MAX_ALL_NAMES_BYTES
                ):
                    self.removed[entity] = None
                    self._removed_bytes += size
                self._settle_unless_claimed()
                return None
            if len(value) > MAX_VALUE_BYTES:
                return "damaged"
            if _Version.model_validate_json(value).version != VERSION:
                return "version"
            record = _Quotas.model_validate_json(value)
        except (ValidationError, QuotaApiError):
            return "damaged"
        old = self.quotas.get(entity)
        size = self._bytes + _size(entity, record.quotas) - (0 if old is None else _size(entity, old))
        if (old is None and len(self.quotas) >= MAX_ENTITIES) or size > MAX_ALL_NAMES_BYTES:
            return "too_many_entities"
        self._settle_unless_claimed()
        if record.restored is None:
            self.restored.pop(entity, None)
        elif self._overrides(entity, record.restored):
            return None
        else:
            self.restored[entity] = record.restored
        self.quotas[entity] = record.quotas
        self._bytes = size
        if entity in self.removed:
            del self.removed[entity]
            self._removed_bytes -= _size(entity)
        return None

    def _drop(self, entity: ClientQuotaEntity) -> None:
        limits = self.quotas.pop(entity, None)
        if limits is not None:
            self._bytes -= _size(entity, limits)

    def _overrides(self, entity: ClientQuotaEntity, position: int) -> bool:
        """True if the topic has a later state of the entity than a gateway that was at `position`."""
        if entity in self.removed or (entity in self.quotas and entity not in self.restored):
            return True
        return position < max(self.restored.get(entity, 0), self.origin)

    def _go_on_from(self, position: int) -> None:
        """Drop restored quotas that a gateway with a higher position did not know: they had been removed."""
        self.origin = max(position, self.origin)
        for entity in [entity for entity, restored in self.restored.items() if restored < self.origin]:
            self._drop(entity)
            del self.restored[entity]

    def _settle_unless_claimed(self) -> None:
        """Settle the topic, unless a gateway is filling it. That gateway may fail before its last batch."""
        if self._claim is None:
            self.settled = True

    def missing(self, known: DynamicQuotas, position: int, *, newer: bool) -> DynamicQuotas:
        """The known quotas of entities that the topic has neither set nor removed.

        `newer`: with those of entities that a gateway with a lower position has restored.
        """
        wanted = known if newer else {entity: limits for entity, limits in known.items() if entity not in self.quotas}
        return {entity: limits for entity, limits in wanted.items() if not self._overrides(entity, position)}

    def unconfirmed(self, entities: Iterable[ClientQuotaEntity]) -> list[Record]:
        """The records that make the state of these entities a later change, if a newer gateway may replace it."""
        restored = [each for each in entities if self.history is not None and not self._overrides(each, _CHANGED)]
        return [entity_record(entity, self.quotas.get(entity, {})) for entity in restored]

    def repairs(self, put: DynamicQuotas, history: str | None, position: int) -> list[Record]:
        """The records to publish behind the restored quotas `put` and their `settled`.

        If other records override these, the others come again: compaction keeps only the last record of a key.
        """
        present = {**self.quotas, **self.removed}
        late = [entity for entity, limits in put.items() if entity in present and self.quotas.get(entity) != limits]
        records = [
            entity_record(entity, self.quotas.get(entity, {}), restored=self.restored.get(entity, _CHANGED)) for entity in late
        ]
        if self.history is not None and (self.history, self.origin) != (history, position):
            records.append(settled(self.history, self.origin))
        return records


def _size(entity: ClientQuotaEntity, limits: Iterable[str] = ()) -> int:
    return sum(len(name.encode()) for name in (*filter(None, entity.kafka_names().values()), *limits))


def changes(before: DynamicQuotas, after: DynamicQuotas, *, restored: int | None = None) -> list[Record]:
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
