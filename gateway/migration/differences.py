"""The brokers' quotas beside `quotas.entities` of a config file: differences, and a list of rows that has both."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import yaml

from gateway.migration.broker_quotas import (
    PER_BROKER,
    KeptQuota,
    MovedQuota,
    Translation,
    entity_of,
    factor_text,
    limits_by_target,
    number_text,
    sort_key,
)
from gateway.migration.broker_quotas import entity_text as broker_entity_text
from gateway.quotas.entity import RATES, ClientQuotaEntity, EntityQuota
from gateway.quotas.entity_row import entity_row
from gateway.quotas.kinds import BY_CONFIG_KEY
from gateway.terminal_text import printable_lines


class Sign(Enum):
    """One quota at the brokers, compared with the config. The value is its sign in listings."""

    ADDED = "+"
    CHANGED = "~"
    SAME = "="
    ONLY_IN_CONFIG = "-"


NAMES = {
    Sign.ADDED: "added",
    Sign.CHANGED: "changed",
    Sign.SAME: "the same",
    Sign.ONLY_IN_CONFIG: "only in the config",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One quota of an entity. `text` has its values."""

    sign: Sign
    entity: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.sign.value} {self.entity}: {self.key} {self.text}"


def entity_text(entity: ClientQuotaEntity) -> str:
    """`user=alice, client-id=<default>` on one line."""
    return broker_entity_text(_broker_entity(entity))


def differences(translation: Translation, rows: Iterable[EntityQuota]) -> list[Difference]:
    """One difference for each quota and exemption, in the order of entities."""
    by_entity = {row.entity: row for row in rows if row.when is None}
    wanted = limits_by_target(translation.moved)
    found: list[Difference] = []
    for entity in sorted({**wanted, **by_entity}, key=lambda entity: sort_key(_broker_entity(entity))):
        name = entity_text(entity)
        row = by_entity.get(entity)
        if row is not None and (row.exempt or row.exempt_from):
            listed = ", ".join(row.exempt_from) or RATES
            effect = ", and the brokers limit it" if row.exempt and entity in wanted else ""
            sign = Sign.CHANGED if effect else Sign.ONLY_IN_CONFIG
            found.append(Difference(sign, name, "exempt", f"from {listed} in the config{effect}"))
        limits: Mapping[str, float] = {} if row is None else row.limits
        for key, quota in wanted.get(entity, {}).items():
            found.append(_compared(name, quota, limits.get(key), translation.brokers))
        for key, limit in limits.items():
            if key not in wanted.get(entity, {}):
                found.append(Difference(Sign.ONLY_IN_CONFIG, name, key, f"{number_text(limit)} (only in the config; it stays)"))
    return found


def summary(found: Sequence[Difference]) -> str:
    """`3 added, 1 changed, 0 the same, 2 only in the config`"""
    return ", ".join(f"{sum(each.sign is sign for each in found)} {name}" for sign, name in NAMES.items())


def merged(translation: Translation, rows: Sequence[EntityQuota]) -> list[EntityQuota]:
    """The config's rows with the brokers' limits, then new rows. Nothing that only the config has is lost. Temporary rows stay.

    The exception is an exemption from rates of an entity that the brokers limit: a row can't have both.
    """
    wanted = limits_by_target(translation.moved)
    result = []
    for row in rows:
        moved = {} if row.when is not None else wanted.pop(row.entity, {})
        limits = {key: quota.limit for key, quota in moved.items()}
        if limits:
            kept = tuple(name for name in row.exempt_from if name != RATES)
            row = replace(row, limits={**row.limits, **limits}, exempt=False, exempt_from=kept)
        result.append(row)
    return result + [
        EntityQuota(entity, {key: quota.limit for key, quota in limits.items()}) for entity, limits in wanted.items()
    ]


def rows_text(rows: Sequence[EntityQuota], translation: Translation) -> str:
    """`quotas.entities` as YAML: the rows of the config, and the brokers' limits in place of the config's.

    Comments have the origin of each limit, and the quotas that stay at the brokers.
    """
    exempt = {row.entity for row in rows if row.exempt}
    rows = merged(translation, rows)
    exempt -= {row.entity for row in rows if row.exempt}
    wanted = limits_by_target(translation.moved)
    targets = {_broker_entity(row.entity): row.entity for row in rows}
    kept: dict[ClientQuotaEntity | None, list[KeptQuota]] = {}
    for quota in translation.kept:
        kept.setdefault(targets.get(quota.entity), []).append(quota)
    lines = ["quotas:", "  entities:" if rows else "  entities: []"]
    for row in rows:
        lines += [f"    # left at the brokers: {quota.text}" for quota in kept.get(row.entity, ())]
        origin = _origin(row, wanted.get(row.entity, {}) if row.when is None else {}, translation.brokers)
        lines.append(f"    - {_flow(row)}  # {origin}" + (", exempt in the config" if row.entity in exempt else ""))
    lines += [f"    # left at the brokers: {quota.text}" for quota in kept.get(None, ())]
    return printable_lines(lines) + "\n"


def _origin(row: EntityQuota, wanted: Mapping[str, MovedQuota], brokers: int | None) -> str:
    if not wanted:
        return "only in the config"
    return "; ".join(factor_text(wanted[key], brokers) if key in wanted else f"{key} only in the config" for key in row.limits)


def _compared(name: str, quota: MovedQuota, limit: float | None, brokers: int | None) -> Difference:
    kind = BY_CONFIG_KEY[quota.key]
    wanted = f"{number_text(quota.limit)} ({kind.text(quota.limit)}; {factor_text(quota, brokers)})"
    if limit is None:
        return Difference(Sign.ADDED, name, quota.key, wanted)
    if limit == quota.limit:
        return Difference(Sign.SAME, name, quota.key, number_text(limit))
    copied = limit == quota.at_broker and quota.key in PER_BROKER
    hint = ": it is the rate of one broker, and Weir's limit is for all of them together" if copied else ""
    return Difference(Sign.CHANGED, name, quota.key, f"{number_text(limit)} in the config, {wanted} at the brokers{hint}")


def _flow(row: EntityQuota) -> str:
    """The row in YAML's flow style, on one line."""
    # PyYAML writes line separators such as U+0085 so that they are read as spaces, unless it escapes everything beyond ASCII.
    readable = all(name.isprintable() for name in row.entity.file_names().values())
    text: str = yaml.dump(
        entity_row(row), Dumper=_Row, default_flow_style=True, sort_keys=False, allow_unicode=readable, width=2**31 - 1
    )
    return text.strip()


class _Row(yaml.SafeDumper):
    """Writes texts beyond printable ASCII in double quotes, for the escapes there.

    They stand for line breaks, and for characters that stdout's encoding does not have.
    """

    def represent_name(self, name: str) -> yaml.Node:
        return self.represent_scalar(
            "tag:yaml.org,2002:str", name, style=None if name.isascii() and name.isprintable() else '"'
        )


_Row.add_representer(str, _Row.represent_name)


def _broker_entity(entity: ClientQuotaEntity) -> tuple[tuple[str, str | None], ...]:
    return entity_of(entity.kafka_names())
