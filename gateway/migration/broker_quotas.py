"""The brokers' own quotas (KIP-546), and the limits by which Weir allows the cluster the same rates.

Kafka's byte rates and connection rates hold for each broker: a client of three brokers may use three times its quota. Weir's
limits hold for the whole cluster, or with `quotas.scope: broker` for each broker too: then all rates stay the same. Partition
mutations pass the active controller alone (KIP-599), so their rate stays the same in both scopes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

from gateway.quotas.addresses import address_of
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, EntityName
from gateway.quotas.kinds import BY_CONFIG_KEY, KINDS
from gateway.terminal_text import printable
from gateway.whole_number import MAX_INT64

Entity = tuple[tuple[str, str | None], ...]
"""An entity's types and names as `entity_of` orders them. The name None is the default."""

BrokerQuotas = Mapping[Entity, Mapping[str, float]]
"""Values by entity and quota key, as a broker describes them."""

_IN_KAFKA: Final = [kind for kind in KINDS.values() if kind.in_kafka]

PER_BROKER: Final = frozenset(kind.config_key for kind in _IN_KAFKA if kind.at_each_broker)
"""Kafka's keys of which every broker grants the whole rate (`ClientQuotaManager`, `ConnectionQuotas`)."""

PER_CLUSTER: Final = frozenset(kind.config_key for kind in _IN_KAFKA if not kind.at_each_broker)

LARGEST: Final = MAX_INT64
"""The largest limit that a config file may have."""

_ORDER: Final = ("user", "client-id", "ip")

_UNSEEN: Final = {"request_percentage": "it measures broker threads, which a gateway can't see"}


@dataclass(frozen=True, slots=True)
class MovedQuota:
    """One quota of the brokers. Its equivalent in Weir: `limit` per second, in its scope, for the entity `target`."""

    entity: Entity
    key: str
    at_broker: float
    target: ClientQuotaEntity
    limit: int | float


@dataclass(frozen=True, slots=True)
class KeptQuota:
    """One quota that stays at the brokers, because Weir has no equivalent: `reason` completes the sentence `because ...`."""

    entity: Entity
    key: str
    value: float
    reason: str

    @property
    def text(self) -> str:
        return f"{entity_text(self.entity)}: {self.key} {number_text(self.value)}, because {self.reason}"


@dataclass(frozen=True, slots=True)
class Translation:
    """All quotas of a cluster of `brokers` brokers, in the order of `sort_key`. None: Weir's limits hold at each broker."""

    brokers: int | None
    moved: tuple[MovedQuota, ...]
    kept: tuple[KeptQuota, ...]


def entity_of(parts: Mapping[str, str | None]) -> Entity:
    """The entity with these names by type; types in Kafka's order, unknown types last."""
    return tuple(sorted(parts.items(), key=lambda part: (_ORDER.index(part[0]) if part[0] in _ORDER else len(_ORDER), part[0])))


def entity_text(entity: Entity) -> str:
    """`user=alice, client-id=<default>` on one line. A client that has the name <default> is shown in quotes."""
    return ", ".join(f"{kind}={_name_text(name)}" for kind, name in entity)


def number_text(value: float) -> str:
    """A limit without a superfluous fraction: 1048576 and 0.5."""
    return str(int(value)) if isfinite(value) and value == int(value) else str(value)


def sort_key(entity: Entity) -> tuple[object, ...]:
    """Users first, then client-ids and addresses; defaults after the names."""
    return tuple((_ORDER.index(kind) if kind in _ORDER else len(_ORDER), name is None, name or "") for kind, name in entity)


def waves(entities: Iterable[Entity]) -> list[list[Entity]]:
    """The entities in the order in which their quotas may be removed: those of the lowest precedence first.

    A broker applies an alteration entity by entity. If a client lost its own quota first, a much lower default would hold for a
    moment. Kafka's throttle for it has no upper bound. So each wave has to be applied before the next begins. Quotas are set in
    the opposite order.
    """
    found: dict[tuple[int, ...], list[Entity]] = {}
    for entity in entities:
        found.setdefault(_precedence(entity), []).append(entity)
    return [found[level] for level in sorted(found, reverse=True)]


def _precedence(entity: Entity) -> tuple[int, ...]:
    """Smaller values override larger ones: for each type 0 for a name, 1 for the default and 2 for any."""
    names = dict(entity)
    return tuple(2 if kind not in names else int(names[kind] is None) for kind in _ORDER)


def translated(quotas: BrokerQuotas, brokers: int | None) -> Translation:
    """The equivalents of all quotas in front of a cluster of that many brokers. None: with `quotas.scope: broker`."""
    moved: list[MovedQuota] = []
    kept: list[KeptQuota] = []
    for entity, values in sorted(quotas.items(), key=lambda item: sort_key(item[0])):
        target = _target(entity)
        for key, value in sorted(values.items()):
            limit = _limit(key, value, brokers)
            if isinstance(limit, str):
                kept.append(KeptQuota(entity, key, value, limit))
            elif isinstance(target, str):
                kept.append(KeptQuota(entity, key, value, target))
            elif not target.parts().keys() <= BY_CONFIG_KEY[key].entity_types:
                kept.append(KeptQuota(entity, key, value, "Weir has no such quota for this type of entity"))
            else:
                moved.append(MovedQuota(entity, key, value, target, limit))
    return Translation(brokers, tuple(moved), tuple(kept))


def limits_by_target(moved: Iterable[MovedQuota]) -> dict[ClientQuotaEntity, dict[str, MovedQuota]]:
    """The quotas by Weir's entity and key. Of two spellings of one address, the lower limit."""
    found: dict[ClientQuotaEntity, dict[str, MovedQuota]] = {}
    for quota in moved:
        of_target = found.setdefault(quota.target, {})
        if quota.key not in of_target or quota.limit < of_target[quota.key].limit:
            of_target[quota.key] = quota
    return found


def factor_text(quota: MovedQuota, brokers: int | None) -> str:
    """The origin of a limit: `1048576 x 3 brokers`, `1048576 at each broker`, or `10 for the cluster`."""
    value = number_text(quota.at_broker)
    if quota.key not in PER_BROKER:
        return f"{value} for the cluster"
    if brokers is None:
        return f"{value} at each broker"
    return f"{value} x {brokers} {'broker' if brokers == 1 else 'brokers'}"


def _limit(key: str, value: float, brokers: int | None) -> int | float | str:
    """Weir's limit, or the reason why the quota stays at the brokers."""
    if key in _UNSEEN:
        return _UNSEEN[key]
    if key not in PER_BROKER | PER_CLUSTER:
        return "Weir does not know this quota"
    if not (isfinite(value) and value > 0):
        return "a limit in a config must be a number above 0"
    times = brokers if brokers is not None and key in PER_BROKER else 1
    if not BY_CONFIG_KEY[key].integral:
        return min(value * times, float(LARGEST))
    whole = int(value) * times if value == int(value) else int(value * times)
    return min(whole, LARGEST) if whole else "a limit in a config must be 1 or more"


def _target(entity: Entity) -> ClientQuotaEntity | str:
    """Weir's entity, or the reason why there is none."""
    names: dict[str, EntityName] = {}
    for kind, name in entity:
        if kind not in _ORDER:
            return f"Weir does not know entities of the type {_name_text(kind)}"
        if name in ("", DEFAULT.value):
            return f'in a config, "{DEFAULT.value}" means the default entity' if name else "a config has no empty names"
        names[kind] = DEFAULT if name is None else name
    ip = names.get("ip")
    if isinstance(ip, str):
        try:
            names["ip"] = str(address_of(ip))
        except ValueError:
            return "a config takes addresses and no host names: set the quota for the address"
    if not names or (ip is not None and len(names) > 1):
        return "Weir does not know this combination of entities"
    return ClientQuotaEntity(names.get("user"), names.get("client-id"), names.get("ip"))


def _name_text(name: str | None) -> str:
    if name is None:
        return DEFAULT.value
    return f'"{name}"' if name == DEFAULT.value else printable(name)
