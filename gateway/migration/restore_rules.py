"""Compares the brokers' quotas with a restore file: quotas to set, and changes since the lift."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from gateway.migration.broker_quotas import PER_BROKER, PER_CLUSTER, BrokerQuotas, Entity, entity_text, number_text, sort_key


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """`missing` and `different` are quotas to set. `restored` counts quotas that have the file's value already.

    `conflicts`: changes since the lift of quotas that Weir enforces, `different` included. `notes`: changes of other quotas.
    """

    missing: BrokerQuotas
    different: BrokerQuotas
    restored: int
    conflicts: tuple[str, ...]
    notes: tuple[str, ...]


def restore_plan(lifted: BrokerQuotas, kept: BrokerQuotas, now: BrokerQuotas) -> RestorePlan:
    """`lifted` and `kept` are those of the restore file, `now` all quotas of the brokers."""
    missing: dict[Entity, dict[str, float]] = {}
    different: dict[Entity, dict[str, float]] = {}
    restored = 0
    conflicts: list[str] = []
    notes: list[str] = []
    for entity in sorted({**lifted, **kept, **now}, key=sort_key):
        name = entity_text(entity)
        removed, stayed, present = (quotas.get(entity, {}) for quotas in (lifted, kept, now))
        for key in sorted({**removed, **stayed, **present}):
            value = present.get(key)
            if value is not None and not isfinite(value):
                continue  # the restore file has no such value, see `weir quotas lift`
            if key in removed:
                old = removed[key]
                if value is None:
                    missing.setdefault(entity, {})[key] = old
                elif value == old:
                    restored += 1
                else:
                    different.setdefault(entity, {})[key] = old
                    conflicts.append(f"{name}: {key} is {number_text(value)}, and the file has {number_text(old)}")
            elif value != stayed.get(key):
                change = _change(name, key, stayed, value)
                (conflicts if key in PER_BROKER | PER_CLUSTER else notes).append(change)
    return RestorePlan(missing, different, restored, tuple(conflicts), tuple(notes))


def _change(name: str, key: str, stayed: Mapping[str, float], value: float | None) -> str:
    old = stayed.get(key)
    if value is None:
        return f"{name}: {key} {number_text(old or 0.0)} has been removed since the lift; it stays removed"
    if old is None:
        return f"{name}: {key} {number_text(value)} has been added since the lift; it stays"
    return f"{name}: {key} has been changed since the lift from {number_text(old)} to {number_text(value)}; it stays"
