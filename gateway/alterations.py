"""Alterations of quotas by clients, for the quota API and for the thresholds of topics.

Both keep their quotas in one store. `alter_queue` has the requests that wait.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.quotas.entity import DEFAULT, GROUP, TOPIC, ClientQuotaEntity
from protocol.bodies.client_quotas import AlterEntry, AlterResult, EntityPart
from protocol.error_codes import ErrorCode

NO_QUOTA_ADMIN: Final = "is not one of Weir's quota_admins."
"""The end of Weir's message with CLUSTER_AUTHORIZATION_FAILED. A broker's message has none of it."""

Parts = Mapping[str, str | None]
"""The names of an entity by type, None for the default. A client may have sent invalid types or names."""


class QuotaApiError(Exception):
    """The error code and the message with which Weir answers a request."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Change(NamedTuple):
    """Sets one quota of an entity; the value None removes the quota."""

    entity: ClientQuotaEntity
    key: str
    value: float | None


@dataclass(eq=False, slots=True, weakref_slot=True)
class MadeChange:
    """A change that is in effect, and the value that it replaced. It may be undone, because the broker may refuse its part.

    `later` is the next change of the same quota.
    """

    change: Change
    before: float | None
    later: "MadeChange | None" = None
    undone: bool = False


@dataclass(slots=True)
class Alteration:
    """The outcome of a request: a result for each entity, the changes of Weir's own quotas, and the broker's part."""

    results: dict[tuple[EntityPart, ...], AlterResult] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    for_broker: list[AlterEntry] = field(default_factory=list)
    _by_entity: dict[ClientQuotaEntity, list[Change]] | None = None

    def fail(self, entity: tuple[EntityPart, ...], code: int, message: str) -> None:
        self.results[entity] = AlterResult(code, message, entity)

    def fail_changes(self, code: int, message: str) -> None:
        """Drop all changes. Each entity that had changes gets the error as its result."""
        entities = {change.entity for change in self.changes}
        for parts, result in list(self.results.items()):
            if result.error_code == ErrorCode.NONE and entity_of(names_of(parts)) in entities:
                self.fail(parts, code, message)
        failed = {parts for parts, result in self.results.items() if result.error_code != ErrorCode.NONE}
        self.for_broker = [entry for entry in self.for_broker if entry.entity not in failed]
        self.changes = []
        self._by_entity = None

    def changes_of(self, parts: tuple[EntityPart, ...]) -> list[Change]:
        if self._by_entity is None:
            self._by_entity = {}
            for change in self.changes:
                self._by_entity.setdefault(change.entity, []).append(change)
        return self._by_entity.get(entity_of(names_of(parts)), [])


def names_of(parts: Iterable[EntityPart]) -> Parts:
    return {part.entity_type: part.name for part in parts}


def entity_of(parts: Parts) -> ClientQuotaEntity:
    """The entity with these names. The caller has checked the types."""
    names = {kind: DEFAULT if name is None else name for kind, name in parts.items()}
    return ClientQuotaEntity(names.get("user"), names.get("client-id"), names.get("ip"), names.get(TOPIC), names.get(GROUP))
