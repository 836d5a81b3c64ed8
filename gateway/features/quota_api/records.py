"""The quotas of the API as records of a compacted topic, one record for each entity.

    key:   {"client-id": null, "user": "alice"}                   the entity, null for the default; keys sorted
    value: {"version": 1, "quotas": {"producer_byte_rate": 1e6}}   all its quotas; no value: no quotas

Each change has a header: its gateway, the topic's id, the hash of the entity's last record that the gateway knew, and the
changed keys. The gateway's name is random, so that two equal changes have two hashes.

    change: {"by": "0f3a...", "topic": "9f0c...", "after": 152703514822431, "keys": ["producer_byte_rate"]}

If `after` is another record than the entity's last one, two gateways have changed the entity at the same moment. Readers then
take only `keys` from the later record. Its gateway publishes the entity again with all quotas, because compaction keeps only
the last record. The same holds for a record that comes late, after its topic was deleted and created again. Weir 0.2 ignores
this header.

The first `claim` in the log wins: that gateway fills an empty topic from its state file. After the record `settled` the topic
is complete. Without any claim, the first record of an entity settles the topic as well.

    key: migration   value: {"version": 1, "claimed_by": "0f3a..."},
                     then   {"version": 1, "claimed_by": null, "history": "5c1e...", "position": 41}

`history` and `position` are the `HistoryPosition` of the gateway that filled the topic. Its records have `"restored": 41`. The
records of several such gateways may mix with each other and with later changes. A later change overrides restored records, also
those behind it, but decides on its own keys only. Of the restored records, those of the highest position are in effect.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gateway.alterations import QuotaApiError
from gateway.cluster.record_batches import Headers, Record
from gateway.features.quota_api.rules import MAX_ENTITIES, AskedKeys, checked_entity
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
_CHANGE: Final = "change"
_CHANGED: Final = 1 << 62  # above every position
_HASH_BYTES: Final = 6  # JSON's numbers are exact up to 53 bits


class _Saved(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class _Version(_Saved):
    version: int


class _Quotas(_Version):
    restored: int | None = None
    quotas: Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=1)]


class _Change(_Saved):
    topic: str
    after: int | None
    keys: list[str]


class _Migration(_Version):
    claimed_by: str | None
    history: str | None = None
    position: int = 0


_PARTS = TypeAdapter(Annotated[dict[str, str | None], Field(min_length=1)])


def entity_record(entity: ClientQuotaEntity, limits: Mapping[str, float], *, restored: int | None = None) -> Record:
    """The record that replaces all quotas of an entity. Without limits it removes them.

    `restored`: the offset in the history of the gateway that knew these quotas before the topic was created again.
    """
    key = json.dumps(entity.kafka_names(), sort_keys=True).encode()
    value = {"version": VERSION, "quotas": dict(limits)} | ({} if restored is None else {"restored": restored})
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

    def __init__(self, gateway: str = "", topic: Callable[[], str] = str) -> None:
        """`gateway` is its name in this topic. `topic` returns the topic's id, once a record has been read."""
        self._gateway = gateway
        self._topic = topic
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
        self._last: dict[ClientQuotaEntity, int] = {}  # the hash of each entity's last record, or -`origin`
        self._torn: dict[ClientQuotaEntity, None] = {}  # a reader that begins at a later record gets other quotas
        # The changed keys of entities of which other quotas may be put back.
        self._decided: dict[ClientQuotaEntity, frozenset[str]] = {}
        self._bytes = 0  # of the names in `quotas`
        self._removed_bytes = 0
        self._decided_bytes = 0  # of the keys in `_decided`

    def receive(self, key: bytes | None, value: bytes | None, headers: Headers, now: float) -> str | None:
        """Apply the next record. For an unusable record, count and return the reason."""
        reason = self._migration(value, now) if key == _MIGRATION else self._entity(key, value, dict(headers).get(_CHANGE))
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

    def _entity(self, key: bytes | None, value: bytes | None, header: bytes | None) -> str | None:
        if max(len(value or b""), len(header or b"")) > MAX_VALUE_BYTES:
            return "damaged"
        limits: dict[str, float] = {}
        restored = change = None
        try:
            entity = checked_entity(_PARTS.validate_json(key or b"", strict=True))
            if value is not None:
                if _Version.model_validate_json(value).version != VERSION:
                    return "version"
                record = _Quotas.model_validate_json(value)
                limits, restored = record.quotas, record.restored
            if header is not None:
                change = _Change.model_validate_json(header)
        except (ValidationError, QuotaApiError):
            return "damaged"
        is_repeated = restored == _CHANGED and entity in self._decided
        if restored is not None and (is_repeated or self._overrides(entity, restored)):
            self._settle_unless_claimed()
            return None
        state = self.quotas.get(entity, {})
        is_next = change is None or self._is_next(entity, change)
        whole = limits
        if restored is not None:
            whole = _with(limits, state, self._decided.get(entity, ()))
        elif change is not None and not is_next:
            whole = _with(state, limits, change.keys)
        if whole and not self._has_room(entity, whole):
            return "too_many_entities"
        self._settle_unless_claimed()
        if restored is not None:
            self.restored[entity] = restored
        else:
            self._note_change(entity, change, is_next=is_next)
        if is_next:
            self._torn.pop(entity, None)
        elif whole != limits:
            self._torn[entity] = None
        self._last[entity] = _hash(value, header)
        self._set(entity, whole)
        return None

    def _is_next(self, entity: ClientQuotaEntity, change: _Change) -> bool:
        """False if the gateway that made a change has missed an earlier record of the entity."""
        if change.topic != self._topic():
            return False
        if self.restored.get(entity) == _CHANGED:  # repeated for compaction, so `after` is an earlier record
            return True
        return self._last.get(entity, change.after) == change.after

    def _note_change(self, entity: ClientQuotaEntity, change: _Change | None, *, is_next: bool) -> None:
        """Note the keys that changes decide on. A newer gateway may still put the entity's other quotas back."""
        if entity in self._last:
            others_may_come = entity in self._decided or self.restored.get(entity, _CHANGED) != _CHANGED
        else:
            others_may_come = change is not None and (change.after is None or not is_next)
        keys = self._decided.get(entity, frozenset())
        self._undecide(entity)
        if change is not None and others_may_come:
            self._decide(entity, keys.union(change.keys))
        if entity not in self._decided:
            self.restored.pop(entity, None)

    def _decide(self, entity: ClientQuotaEntity, keys: frozenset[str]) -> None:
        """Note these keys if there is room. Without a note, the entity's last record decides on all keys."""
        size = _bytes_of(keys)
        if self._decided_bytes + size <= MAX_ALL_NAMES_BYTES:
            self._decided[entity] = keys
            self._decided_bytes += size

    def _undecide(self, entity: ClientQuotaEntity) -> None:
        self._decided_bytes -= _bytes_of(self._decided.pop(entity, ()))

    def _has_room(self, entity: ClientQuotaEntity, limits: dict[str, float]) -> bool:
        old = self.quotas.get(entity)
        size = self._bytes + _size(entity, limits) - (0 if old is None else _size(entity, old))
        return size <= MAX_ALL_NAMES_BYTES and (old is not None or len(self.quotas) < MAX_ENTITIES)

    def _set(self, entity: ClientQuotaEntity, limits: dict[str, float]) -> None:
        if not limits:
            self._drop(entity)
            self._note_removal(entity)
            return
        old = self.quotas.get(entity)
        self._bytes += _size(entity, limits) - (0 if old is None else _size(entity, old))
        self.quotas[entity] = limits
        if entity in self.removed:
            del self.removed[entity]
            self._removed_bytes -= _size(entity)

    def _drop(self, entity: ClientQuotaEntity) -> None:
        limits = self.quotas.pop(entity, None)
        if limits is not None:
            self._bytes -= _size(entity, limits)

    def _note_removal(self, entity: ClientQuotaEntity) -> None:
        size = _size(entity)
        if entity in self.removed:
            return
        if len(self.removed) < MAX_ENTITIES and self._removed_bytes + size <= MAX_ALL_NAMES_BYTES:
            self.removed[entity] = None
            self._removed_bytes += size
        else:
            self._forget(entity)

    def _forget(self, entity: ClientQuotaEntity) -> None:
        self._undecide(entity)
        for known in (self._last, self._torn, self.restored):
            known.pop(entity, None)

    def _overrides(self, entity: ClientQuotaEntity, position: int) -> bool:
        """True if the topic has a later state of the entity than a gateway that was at `position`."""
        is_known = entity in self.removed or (entity in self.quotas and entity not in self.restored)
        if is_known and entity not in self._decided:
            return True
        return position < max(self.restored.get(entity, 0), self.origin)

    def _go_on_from(self, position: int) -> None:
        """Drop restored quotas that a gateway with a higher position did not know: they had been removed."""
        self.origin = max(position, self.origin)
        for entity in [entity for entity, restored in self.restored.items() if restored < self.origin]:
            del self.restored[entity]
            decided = self._decided.setdefault(entity, frozenset())
            self._last[entity] = -self.origin  # a change that was made of the dropped quotas has missed this
            self._set(entity, _with({}, self.quotas.get(entity, {}), decided))

    def _settle_unless_claimed(self) -> None:
        """Settle the topic, unless a gateway is filling it. That gateway may fail before its last batch."""
        if self._claim is None:
            self.settled = True

    def missing(self, known: DynamicQuotas, position: int, *, newer: bool) -> DynamicQuotas:
        """The known quotas of entities that the topic has neither set nor removed, or of which it has single keys only.

        `newer`: with those of entities that a gateway with a lower position has restored.
        """
        lacking = {entity: limits for entity, limits in known.items() if newer or not self._is_whole(entity)}
        return {entity: limits for entity, limits in lacking.items() if not self._overrides(entity, position)}

    def _is_whole(self, entity: ClientQuotaEntity) -> bool:
        return entity in self.quotas and (entity in self.restored or entity not in self._decided)

    def changes(self, wanted: DynamicQuotas) -> list[Record]:
        """The records of a change to the quotas `wanted`."""
        changed = [each for each in {**self.quotas, **wanted} if self.quotas.get(each) != wanted.get(each)]
        return [self._change(entity, wanted.get(entity, {})) for entity in changed]

    def _change(self, entity: ClientQuotaEntity, limits: Mapping[str, float], asked: Iterable[str] = ()) -> Record:
        old = self.quotas.get(entity, {})
        keys = [key for key in dict.fromkeys((*old, *limits, *asked)) if key in asked or old.get(key) != limits.get(key)]
        change = {"by": self._gateway, "topic": self._topic(), "after": self._last.get(entity), "keys": keys}
        return (*entity_record(entity, limits), (_CHANGE, json.dumps(change).encode()))

    def unconfirmed(self, asked: AskedKeys) -> list[Record]:
        """The records that make these quotas a later change, if a newer gateway may replace them."""
        if self.history is None:
            return []
        return [
            self._change(entity, self.quotas.get(entity, {}), keys)
            for entity, keys in asked.items()
            if self._is_open(entity, keys)
        ]

    def _is_open(self, entity: ClientQuotaEntity, keys: Collection[str]) -> bool:
        """True if no record of this topic decides on one of the quotas."""
        if entity in self._decided:
            return not self._decided[entity].issuperset(keys)
        return not self._overrides(entity, _CHANGED)

    def completing(self, records: Iterable[Record]) -> list[Record]:
        """The records with all quotas of entities whose last record is one of `records`, and lacks another gateway's change."""
        hashes = {_hash(value, dict(headers).get(_CHANGE)) for _, value, *headers in records}
        return [self._change(each, self.quotas.get(each, {})) for each in self._torn if self._last.get(each) in hashes]

    def repairs(self, put: DynamicQuotas, history: str | None, position: int) -> list[Record]:
        """The records to publish behind the restored quotas `put` and their `settled`.

        If other records override these, the others come again: compaction keeps only the last record of a key.
        """
        present = {**self.quotas, **self.removed}
        late = [entity for entity, limits in put.items() if entity in present and self.quotas.get(entity) != limits]
        positions = {entity: _CHANGED if entity in self._decided else self.restored.get(entity, _CHANGED) for entity in late}
        records = [entity_record(entity, self.quotas.get(entity, {}), restored=at) for entity, at in positions.items()]
        if self.history is not None and (self.history, self.origin) != (history, position):
            records.append(settled(self.history, self.origin))
        return records


def _size(entity: ClientQuotaEntity, limits: Iterable[str] = ()) -> int:
    return _bytes_of((*filter(None, entity.kafka_names().values()), *limits))


def _bytes_of(names: Iterable[str]) -> int:
    return sum(len(name.encode()) for name in names)


def _hash(value: bytes | None, header: bytes | None) -> int:
    return int.from_bytes(blake2b((header or b"") + b"\n" + (value or b""), digest_size=_HASH_BYTES).digest())


def restored_records(quotas: DynamicQuotas, position: int) -> list[Record]:
    """The records of quotas that a gateway at `position` puts back."""
    return [entity_record(entity, limits, restored=position) for entity, limits in quotas.items()]


def rebased(before: DynamicQuotas, after: DynamicQuotas, now: DynamicQuotas) -> DynamicQuotas:
    """`now` with the differences between `before` and `after` applied."""
    result = dict(now)
    for entity in {**before, **after}:
        old, new = before.get(entity, {}), after.get(entity, {})
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        if changed:
            limits = _with(now.get(entity, {}), new, changed)
            result.pop(entity, None)
            if limits:
                result[entity] = limits
    return result


def _with(limits: Mapping[str, float], new: Mapping[str, float], keys: Collection[str]) -> dict[str, float]:
    """The limits, with those of `keys` from `new`."""
    kept = {key: limit for key, limit in limits.items() if key not in keys}
    return kept | {key: new[key] for key in keys if key in new}
