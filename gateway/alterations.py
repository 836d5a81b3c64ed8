"""Alterations of quotas by clients, for the quota API and for the thresholds of topics.

Both keep their quotas in one store. `features.quota_api` carries out all alterations, one after the other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from gateway.quotas.entity import DEFAULT, TOPIC, ClientQuotaEntity, DynamicQuotas
from protocol.bodies.client_quotas import AlterEntry, AlterRequest, AlterResult, EntityPart

NONE: Final = 0
UNKNOWN_SERVER_ERROR: Final = -1
CLUSTER_AUTHORIZATION_FAILED: Final = 31
INVALID_REQUEST: Final = 42
"""Kafka's error codes."""

Parts = Mapping[str, str | None]
"""An entity's names by its types, None for the default; as clients send it, valid or not."""


class QuotaApiError(Exception):
    """A request that Kafka answers with an error: its code and its text."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Change(NamedTuple):
    """A quota that is set for an entity, or removed where the value is None."""

    entity: ClientQuotaEntity
    key: str
    value: float | None


@dataclass(slots=True)
class Alteration:
    """The outcome of a request: an answer for each entity, the `changes` to make here, and the part to ask the broker for."""

    results: dict[tuple[EntityPart, ...], AlterResult] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    for_broker: list[AlterEntry] = field(default_factory=list)
    _by_entity: dict[ClientQuotaEntity, list[Change]] | None = None

    def fail(self, entity: tuple[EntityPart, ...], code: int, message: str) -> None:
        self.results[entity] = AlterResult(code, message, entity)

    def fail_changes(self, code: int, message: str) -> None:
        """Drop all changes; each entity that had changes is answered with the error."""
        entities = {change.entity for change in self.changes}
        for parts, result in list(self.results.items()):
            if result.error_code == NONE and entity_of(names_of(parts)) in entities:
                self.fail(parts, code, message)
        failed = {parts for parts, result in self.results.items() if result.error_code != NONE}
        self.for_broker = [entry for entry in self.for_broker if entry.entity not in failed]
        self.changes = []
        self._by_entity = None

    def changes_of(self, parts: tuple[EntityPart, ...]) -> list[Change]:
        """The changes of one entity."""
        if self._by_entity is None:
            self._by_entity = {}
            for change in self.changes:
                self._by_entity.setdefault(change.entity, []).append(change)
        return self._by_entity.get(entity_of(names_of(parts)), [])


class AlterRules(Protocol):
    """The rules for the alteration of one kind of entities."""

    def alteration(self, request: AlterRequest) -> Alteration: ...

    def check(self, before: DynamicQuotas, after: DynamicQuotas) -> None:
        """Raise QuotaApiError if all quotas of the API may not become `after`."""
        ...


class AlterTask:
    """A request on its way; `done` is called once its `alteration` is there: final, saved and in effect.

    `before` is the quotas of the API just before the request. Without `rules` it is a request of the quota API itself.
    """

    def __init__(self, request: AlterRequest, user: str, done: Callable[[], None], *, rules: AlterRules | None = None) -> None:
        self.request = request
        self.rules = rules
        self.user = user
        self.done = done
        self.alteration: Alteration | None = None
        self.before: DynamicQuotas = {}


def denied(user: str) -> str:
    """The message for a client that is no quota admin."""
    return f"Cluster authorization failed: User:{user} is not one of Weir's quota_admins."


def names_of(parts: Iterable[EntityPart]) -> Parts:
    return {part.entity_type: part.name for part in parts}


def entity_of(parts: Parts) -> ClientQuotaEntity:
    """An entity by the names of its parts, which are valid."""
    names = {kind: DEFAULT if name is None else name for kind, name in parts.items()}
    return ClientQuotaEntity(names.get("user"), names.get("client-id"), names.get("ip"), names.get(TOPIC))
