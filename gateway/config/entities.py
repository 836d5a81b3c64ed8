"""The rows of `quotas.entities`: names, limits and exemptions."""

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, WrapValidator, create_model

from gateway.config.endpoints import address_or_default
from gateway.config.request_rates import rates_key
from gateway.config.section import Section, described, given, invalid
from gateway.config.shadow_rows import check_shadow, shadow_key, shadow_limits
from gateway.config.timed_rows import TimedKeys
from gateway.quotas.entity import (
    DEFAULT,
    EXEMPTIONS,
    GROUP,
    MAX_CONNECTIONS,
    RATES,
    ClientQuotaEntity,
    Default,
    EntityName,
    EntityQuota,
)
from gateway.quotas.entity_row import entity_row
from gateway.quotas.kinds import KINDS, ROW_KINDS, QuotaKind
from gateway.quotas.kinds.request_rates import BY_API
from gateway.quotas.kinds.request_rates import KEY as REQUEST_RATES
from gateway.whole_number import MAX_INT32, MAX_INT64


def _checked(value: object, _: object) -> bool | tuple[str, ...]:
    if value is None:
        raise invalid("is empty", "fill it in, or remove the key to get its default")
    if isinstance(value, bool):
        return value
    if not isinstance(value, list | tuple):
        raise invalid(
            "is neither true, false nor a list", f"write true for rates alone, or list some of {', '.join(EXEMPTIONS)}"
        )
    for name in value:
        if name not in EXEMPTIONS:
            raise invalid(
                f"has {name!r}, which is not a kind of exemption",
                f"list some of {', '.join(EXEMPTIONS)}; true means rates alone",
            )
    return tuple(name for name in EXEMPTIONS if name in value)


Exempt = Annotated[Any, WrapValidator(_checked, json_schema_input_type=bool | list[Literal["rates", "topics", "volumes"]])]
"""`exempt`: true, or a list, which becomes a tuple in the order of `EXEMPTIONS`."""


def exemptions(value: bool | tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """(True if the entity is exempt from rates, the list of the file or ())"""
    return (RATES in value, value) if isinstance(value, tuple) else (value, ())


NameKey = Annotated[str | None, given(f'write a name, "{DEFAULT.value}" for the default entity, or remove the key')]


class _EntityKeys(Section):
    """The keys of an entity's row except the quotas, which the registry of kinds adds."""

    user: NameKey = described(f"Name of a user; `{DEFAULT.value}` is every user without a row.", None)
    client_id: NameKey = described(
        f"Name of a client-id, alone or together with `user`; `{DEFAULT.value}` is every client-id without a row.",
        None,
        alias="client-id",
    )
    ip: Annotated[str | None, BeforeValidator(address_or_default)] = described(
        f"Address of clients; `{DEFAULT.value}` is every address without a row.", None
    )
    exempt: Exempt = described(
        "`true` exempts the entity from all rates, and a user from `max_connections`; a list names the quotas that do not"
        " apply.",
        False,
    )


class _TimedEntityKeys(TimedKeys, _EntityKeys):
    """The names come first, then the time."""


def _limit(kind: QuotaKind) -> tuple[object, object]:
    """The type and the description of a kind's key."""
    unit = f"{kind.unit.name} per second"
    words = f"{kind.description[:1].upper()}{kind.description[1:]}."
    number: Any = int if kind.integral else float
    return Annotated[number, Field(gt=0, le=MAX_INT64)], described(words, None, unit=unit, absent="no limit")


_MOST: Any = (
    Annotated[int, Field(gt=0, le=MAX_INT32)],
    described("Open connections of the user at a time.", None, unit="connections", absent="no limit"),
)
_LIMITS: dict[str, Any] = {kind.config_key: _limit(kind) for kind in ROW_KINDS} | {MAX_CONNECTIONS: _MOST}
_RATES: dict[str, Any] = {REQUEST_RATES: rates_key("the entity")}
_SHADOW: Any = shadow_key("EntityShadow", ROW_KINDS, _limit, _RATES)
EntityRow = create_model("EntityRow", __base__=_TimedEntityKeys, **_LIMITS, **_RATES, shadow=_SHADOW)
"""A row of `quotas.entities` in the file."""


def entity_quota(value: object) -> EntityQuota:
    """A validated row of `quotas.entities`. Raises ValueError: pydantic's for keys, or its custom one for the row."""
    if isinstance(value, EntityQuota):
        return value
    row: Any = EntityRow.model_validate(value)
    limits = {key: limit for key in _LIMITS if (limit := getattr(row, key)) is not None} | (row.request_rates or {})
    types = {name for name, value in (("user", row.user), ("client-id", row.client_id), ("ip", row.ip)) if value is not None}
    if not types:
        remedy = f'give it user, client-id, both of them, or ip; "{DEFAULT.value}" is the default entity'
        raise invalid("names no entity", remedy)
    if "ip" in types and len(types) > 1:
        raise invalid("combines ip with user or client-id", "give the address a row of its own")
    for kind in KINDS.values():
        if kind.config_key in limits and not types <= kind.entity_types:
            whose = " and ".join(sorted(kind.entity_types - {GROUP}))
            row_of = "a row with one of them alone" if "user" in types & kind.entity_types else "a row of such an entity"
            raise invalid(f"has {kind.config_key}, a quota of {whose}", f"move it to {row_of}")
    if MAX_CONNECTIONS in limits and types != {"user"}:
        raise invalid(
            f"has {MAX_CONNECTIONS}, a limit of users",
            "move it to a row with user alone; connections.max_per_ip limits addresses",
        )
    exempt, exempt_from = exemptions(row.exempt)
    shadow, when = shadow_limits(row.shadow), row.when()
    check_shadow(shadow, types, when, alone=not limits and not exempt and not exempt_from)
    if exempt and limits:
        raise invalid(f"is exempt and has {', '.join(limits)}", "remove exempt or the quotas")
    if "ip" in types and set(exempt_from) - {RATES}:
        raise invalid(
            f"exempts an ip from {exempt_from[-1]}, which is a quota of clients", "give the exemption to a user or client-id"
        )
    if not exempt and not exempt_from and not limits and not shadow:
        raise invalid("sets nothing", f"give it one of {', '.join(_keys_of(types))}, or exempt: true, or remove it")
    entity = ClientQuotaEntity(_default_or_name(row.user), _default_or_name(row.client_id), _default_or_name(row.ip))
    return EntityQuota(entity, MappingProxyType(limits), exempt, exempt_from, when=when, shadow=MappingProxyType(shadow))


def _keys_of(types: set[str]) -> list[str]:
    """The keys that the row of an entity of these types can have, except `exempt`."""
    rates = [kind.config_key for kind in ROW_KINDS if types <= kind.entity_types]
    most = [MAX_CONNECTIONS] if types == {"user"} else []
    single = [REQUEST_RATES] if all(types <= kind.entity_types for kind in BY_API.values()) else []
    return [*rates, *most, *single, "shadow"]


def _default_or_name(name: str | None) -> EntityName:
    return DEFAULT if name == DEFAULT.value else name


EntityRows = Annotated[
    tuple[
        Annotated[EntityQuota, PlainValidator(entity_quota, json_schema_input_type=EntityRow), PlainSerializer(entity_row)],
        ...,
    ],
    Field(strict=False),
]


def exemption_warnings(entities: Sequence[EntityQuota]) -> Iterator[str]:
    """One line for each row that exempts a client-id of any user from a limit: a client chooses its client-id.

    Limits of users, and of the default client-id, would hold for it otherwise.
    """
    users = any(quota.entity.user is not None and quota.limits for quota in entities)
    if not users and not any(quota.entity.client_id is DEFAULT and quota.limits for quota in entities):
        return
    for index, quota in enumerate(entities):
        user, client_id = quota.entity.user, quota.entity.client_id
        if (quota.exempt or quota.exempt_from) and client_id is not None and (user is None or user is DEFAULT):
            name = client_id.value if isinstance(client_id, Default) else client_id
            left = (
                ("the quotas by user" if users else "the default quotas")
                if quota.exempt
                else f"quotas.{' and quotas.'.join(quota.exempt_from)}"
            )
            row = f"[{', '.join(quota.exempt_from)}]" if quota.exempt_from else "true"
            yield (
                f"quotas.entities[{index}].client-id: {name} is exempt, and a client chooses its own client-id, so any user can"
                f" leave {left} with it — exempt the user that this client authenticates as:"
                f" {{user: NAME, exempt: {row}}}"
            )


_MEANT_DEFAULT = frozenset({"default", "<default>", "*", ".*", "all", "any", "null", "none", "~"})


def name_warnings(entities: Sequence[EntityQuota]) -> Iterator[str]:
    """One line for each name that is probably meant as the default entity, as a pattern, or as a principal."""
    for index, quota in enumerate(entities):
        for kind, name in quota.entity.parts().items():
            if isinstance(name, Default):
                continue
            key = f"quotas.entities[{index}].{kind}"
            if name.strip().casefold() in _MEANT_DEFAULT:
                yield (
                    f'{key}: "{name}" is the name of one {kind}, and no other {kind} has this row — write'
                    f' "{DEFAULT.value}" for every {kind} without a row'
                )
            elif "*" in name:
                yield (
                    f'{key}: "{name}" is a name and no pattern — write a group with this pattern in quotas.groups, or use'
                    f' "{DEFAULT.value}"'
                )
            elif kind == "user" and name.startswith("User:"):
                yield f'{key}: "{name}" is a principal, and quotas have the plain name — write {name.removeprefix("User:")}'
