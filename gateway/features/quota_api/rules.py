"""The rules of Kafka's quota API (KIP-546): validates and applies alterations, and matches entities with a filter.

Rules, codes and texts follow `ClientQuotaControlManager` and `ClientQuotasImage` of Kafka 4.3, as recorded from a broker. One
rule differs: Weir refuses NaN and infinity, because no client could be limited to such a value.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from math import isinf
from typing import Final, NamedTuple

from gateway.alterations import Alteration, Change, MadeChange, Parts, QuotaApiError, entity_of, names_of
from gateway.quotas.entity import (
    DEFAULT,
    GROUP,
    MAX_CONNECTIONS,
    TOPIC,
    ClientQuotaEntity,
    Default,
    DynamicQuotas,
    EntityName,
    EntityQuota,
)
from gateway.quotas.kinds import KINDS
from gateway.quotas.kinds.connection import KIND as CONNECTIONS
from gateway.quotas.kinds.request_rates import BY_API, refusal
from gateway.quotas.kinds.request_rates import KEY as REQUEST_RATES
from gateway.quotas.quota_table import QuotaTable, bounded
from gateway.steps import Steps
from gateway.whole_number import MAX_INT64
from protocol.bodies.client_quotas import (
    MATCH_DEFAULT,
    MATCH_EXACT,
    MATCH_SPECIFIED,
    AlterEntry,
    AlterResult,
    Component,
    DescribedEntity,
    EntityPart,
)
from protocol.cursor import MAX_STRING_BYTES
from protocol.error_codes import ErrorCode

AskedKeys = Mapping[ClientQuotaEntity, Collection[str]]
"""Quotas that a request names: the keys of each entity."""

MAX_ENTITIES: Final = 100_000
"""The maximum number of entities with quotas from the API. The entities of the config file do not count."""

_CLIENT_ID, _USER, _IP = "client-id", "user", "ip"
_TYPES: Final = (_CLIENT_ID, _USER, _IP, GROUP)
"""Kafka's entity types, in the order in which a broker names them, and Weir's own."""

_MATCH_NAMES: Final = {MATCH_DEFAULT: "MATCH_TYPE_DEFAULT", MATCH_SPECIFIED: "MATCH_TYPE_SPECIFIED"}

_EPSILON: Final = 1e-6

_STEP_ENTITIES: Final = 16


class _Key(NamedTuple):
    """A quota key: the types of entities that can have it, and its largest value. `integral`: only whole numbers are valid."""

    entity_types: frozenset[str]
    integral: bool
    largest: int


_BROKERS_KEYS: Final = {"request_percentage": _Key(frozenset({_USER, _CLIENT_ID}), False, MAX_INT64)}
"""The keys that the broker keeps, because only a broker can measure them."""

_KEYS: Final = {
    kind.config_key: _Key(kind.entity_types, kind.integral, kind.largest) for kind in KINDS.values()
} | _BROKERS_KEYS
# As at a broker, users have no limits of connections in the API. Only the config file can set those.
_KEYS[CONNECTIONS.config_key] = _KEYS[CONNECTIONS.config_key]._replace(entity_types=frozenset({_IP}))

_SHADOW: Final = "shadow"
_APIS: Final = {name.lower(): name for name in BY_API}


def alteration(
    entries: Iterable[AlterEntry], resolvable: Callable[[str], bool], groups: Container[str | None] = ()
) -> Alteration:
    """The alteration in an AlterClientQuotas request. `resolvable` returns True for an address or a host name with an address.

    `groups` are the names of the config file. The quotas of a group that the file no longer has can only be removed.

    As in Kafka, an invalid entity does not affect the others, and an invalid quota makes its entity invalid. If an entity
    appears twice, the first one takes effect, although the answer is an error.
    """
    found = Alteration()
    for entry in entries:
        parts = names_of(entry.entity)
        entity = _ordered(parts)
        ops = {op.key: op.value for op in entry.ops}
        if entity in found.results or len(ops) < len(entry.ops):
            found.fail(entity, ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {_java_text(entity)}")
            continue
        try:
            _check_entity(parts, resolvable)
            _check_ops(parts, ops)
            if GROUP in parts and parts[GROUP] not in groups and any(value is not None for value in ops.values()):
                raise _invalid(f"There is no group {parts[GROUP]} in quotas.groups of Weir's config file: add it there first.")
        except QuotaApiError as error:
            found.fail(entity, error.code, error.message)
            continue
        found.results[entity] = AlterResult(ErrorCode.NONE, None, entity)
        target = entity_of(parts)
        found.changes += [Change(target, key, value) for key, value in ops.items() if key not in _BROKERS_KEYS]
        brokers = tuple(op for op in entry.ops if op.key in _BROKERS_KEYS)
        if brokers:
            found.for_broker.append(AlterEntry(entity, brokers))
    return found


def ips(entries: Iterable[AlterEntry]) -> set[str]:
    """The names of type `ip` in a request: addresses, host names, or invalid names."""
    return {part.name for entry in entries for part in entry.entity if part.entity_type == _IP and part.name}


def altered(quotas: DynamicQuotas, changes: Iterable[Change]) -> DynamicQuotas:
    new = dict(quotas)
    for entity, key, value in changes:
        limits = {name: limit for name, limit in new.get(entity, {}).items() if name != key}
        if value is not None:
            limits[key] = value
        if limits:
            new[entity] = limits
        else:
            new.pop(entity, None)
    return new


def check_room(before: DynamicQuotas, after: DynamicQuotas) -> None:
    """Raises QuotaApiError if there are more entities than `MAX_ENTITIES`, and more than before."""
    if len(after) > max(MAX_ENTITIES, len(before)):
        raise QuotaApiError(
            ErrorCode.INVALID_REQUEST, f"Quotas of more than {MAX_ENTITIES} entities can not be kept: remove some first."
        )


def undone(changes: Iterable[MadeChange], quotas: DynamicQuotas) -> list[Change]:
    """The changes of `quotas` that undo `changes`. It may be called again if these could not be saved.

    A later change of the same quota stays, also if it has the same value. If it is undone too, the quota gets the value from
    before both.
    """
    found = []
    for made in changes:
        made.undone = True
        later = made.later
        while later is not None and later.undone:
            later = later.later
        entity, key, value = made.change
        if later is not None:
            later.before = made.before
        elif quotas.get(entity, {}).get(key) == value:  # otherwise another gateway has changed it since
            found.append(Change(entity, key, made.before))
    return found


class ListedQuotas:
    """The quotas of the file and of the API at one moment, with the names that were given to the API.

    `rows` are those of the file in `table`. Nothing here changes, because a change of quotas makes other objects.
    """

    def __init__(self, api: DynamicQuotas, rows: Sequence[EntityQuota], table: QuotaTable) -> None:
        self._api = api
        self._rows = rows
        self._table = table

    def limits(self, entity: ClientQuotaEntity) -> dict[str, float]:
        """The limits of an entity by quota key, without those of other levels."""
        limits = self._table.file_limits(entity)
        limits.update(self._api.get(entity, {}))
        return {key: bounded(limit) for key, limit in limits.items()}

    def entities(self) -> Iterator[ClientQuotaEntity | None]:
        """Each client, address and group with limits. None stands for a row or an entity that is left out."""
        for row in self._rows:
            yield row.entity if self._table.file_limits(row.entity) else None
        for entity in self._api:
            yield entity if entity.topic is None and not self._table.file_limits(entity) else None


def described(quotas: ListedQuotas, components: Sequence[Component], *, strict: bool) -> Steps[list[DescribedEntity]]:
    """The entities that match a DescribeClientQuotas filter. Raises QuotaApiError if the filter is invalid."""
    names, types = wanted(components)
    found: list[DescribedEntity] = []
    if names_one(components, strict=strict):
        entity = entity_of({kind: None if isinstance(name, Default) else name for kind, name in names.items()})
        if limits := quotas.limits(entity):
            found.append(DescribedEntity(_ordered(entity.kafka_names()), tuple(limits.items())))
        return found
    for number, each in enumerate(quotas.entities(), 1):
        if number % _STEP_ENTITIES == 0:
            yield
        if each is None:
            continue
        parts = each.parts()
        if strict and len(parts) != len(components):
            continue
        if all(parts.get(kind) == name for kind, name in names.items()) and types <= parts.keys():
            found.append(DescribedEntity(_ordered(each.kafka_names()), tuple(quotas.limits(each).items())))
    return found


def names_one(components: Sequence[Component], *, strict: bool) -> bool:
    """True if at most one entity matches a valid filter, and can be looked up."""
    return strict and bool(components) and all(each.match_type in (MATCH_EXACT, MATCH_DEFAULT) for each in components)


def with_brokers(own: list[DescribedEntity], brokers: Iterable[DescribedEntity]) -> Steps[list[DescribedEntity]]:
    """Add the broker's quotas of keys that Weir does not keep to `own`, and return it.

    The broker's values of Weir's keys are left out, because Weir's values apply to clients that connect through Weir.
    """
    left: dict[tuple[EntityPart, ...], dict[str, float]] = {}
    for each in brokers:
        theirs = {key: value for key, value in each.values if key in _BROKERS_KEYS or key not in _KEYS}
        if theirs:
            entity = _ordered(names_of(each.entity))
            left[entity] = left.get(entity, {}) | theirs
        yield
    for index, each in enumerate(own):
        added = left.pop(each.entity, None)
        if added is not None:
            own[index] = DescribedEntity(each.entity, tuple((dict(each.values) | added).items()))
        yield
    for entity in list(left):
        own.append(DescribedEntity(entity, tuple(left.pop(entity).items())))
        yield
    return own


def checked_entity(parts: Parts) -> ClientQuotaEntity:
    """The entity with these parts. It may be a topic. Raises QuotaApiError if there is no such entity."""
    for kind, name in parts.items():
        if name is not None and len(name.encode()) > MAX_STRING_BYTES:
            raise _invalid(f"The {kind} has more than {MAX_STRING_BYTES} bytes")
    if not (parts.keys() == {TOPIC} and parts[TOPIC]):
        _check_entity(parts, lambda _: True)
    return entity_of(parts)


def quota_fault(entity: ClientQuotaEntity, key: str, value: float) -> str | None:
    """The API's message about a quota that no request can set. None for other quotas, and for the thresholds of topics."""
    if entity.topic is not None:
        return None
    try:
        _check_ops(entity.kafka_names(), {key: value})
    except QuotaApiError as error:
        return error.message
    return None


def _check_entity(parts: Parts, resolvable: Callable[[str], bool]) -> None:
    if not parts:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in parts.items():
        if kind not in _TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if GROUP in parts:
        if len(parts) > 1:
            raise _invalid("Invalid quota entity combination, a group can not be combined with other entities")
        if parts[GROUP] is None:
            raise _invalid("There is no default group, name a group of Weir's config file")
    if _IP in parts:
        if len(parts) > 1:
            raise _invalid(
                "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"  # Kafka's spelling
            )
        ip = parts[_IP]
        if ip is not None and not resolvable(ip):
            raise _invalid(f"{ip} is not a valid IP or resolvable host.")


def _check_ops(parts: Parts, ops: Mapping[str, float | None]) -> None:
    """Removals may have any key. Unknown keys are reported before invalid values."""
    values = {key: value for key, value in ops.items() if value is not None}
    for key in values:
        if key not in _KEYS or not parts.keys() <= _KEYS[key].entity_types:
            raise _invalid(f"Invalid configuration key {key}{_remedy(key, parts)}")
    for key, value in values.items():
        _, integral, largest = _KEYS[key]
        if not value > 0:  # also true for NaN
            raise _invalid(f"Quota {key} must be greater than 0")
        if isinf(value) and not integral:
            raise _invalid(f"Proposed value for {key} is too large for a DOUBLE.")
        if integral and value > float(largest):
            raise _invalid(f"Proposed value for {key} is too large for {'an INT' if largest < 2**32 else 'a LONG'}.")
        if integral and value % 1 > _EPSILON:
            raise _invalid(f"{key} cannot be a fractional value.")


def _remedy(key: str, parts: Parts) -> str:
    """The end of the message about an invalid key; empty if the key is not one of Weir's own, as in a broker's message."""
    section, _, name = key.partition(".")
    if section == _SHADOW or (key == MAX_CONNECTIONS and parts.keys() == {_USER}):
        path = [part for part in key.split(".", 2) if part]
        value = "NUMBER" + "}" * (len(path) - 1)
        rows = "groups" if GROUP in parts else "entities"
        return f": only Weir's config file can set it. Write {': {'.join(path)}: {value} into a row of quotas.{rows}."
    if section != REQUEST_RATES or key in _KEYS:
        return ""
    if reason := refusal(name):
        return f": {name} can not be limited, because {reason}."
    meant = _APIS.get(name.lower())
    if meant:
        return f": did you mean {REQUEST_RATES}.{meant}?"
    return f": write the name of an API as Kafka spells it, such as {REQUEST_RATES}.Metadata."


def wanted(components: Sequence[Component]) -> tuple[dict[str, EntityName], set[str]]:
    """The requested names by type, and the types that match any name. Raises QuotaApiError if the filter is invalid."""
    names: dict[str, EntityName] = {}
    types: set[str] = set()
    for kind, how, match in components:
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in names or kind in types:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in _TYPES:
            raise QuotaApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if how == MATCH_EXACT:
            if match is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            names[kind] = match
            continue
        if how not in _MATCH_NAMES:
            raise _invalid(f"Unknown match type {how}")
        if match is not None:
            raise _invalid(f"Request specified {_MATCH_NAMES[how]}, but also specified a match string.")
        if how == MATCH_DEFAULT:
            names[kind] = DEFAULT
        else:
            types.add(kind)
    requested = names.keys() | types
    if _IP in requested and len(requested) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component."
        )
    return names, types


def _invalid(message: str) -> QuotaApiError:
    return QuotaApiError(ErrorCode.INVALID_REQUEST, message)


def _ordered(parts: Parts) -> tuple[EntityPart, ...]:
    """The parts in the order of a broker's answer."""
    known = [kind for kind in _TYPES if kind in parts]
    return tuple(EntityPart(kind, parts[kind]) for kind in (*known, *(kind for kind in parts if kind not in _TYPES)))


def _java_text(entity: Sequence[EntityPart]) -> str:
    """An entity in the format of Kafka's `ClientQuotaEntity.toString`."""
    names = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{names}}})"
