"""Decides if quotas may leave the brokers: Weir must enforce a limit for each entity that is at least as low."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.migration.broker_quotas import MovedQuota, Translation, entity_text, factor_text, limits_by_target, number_text
from gateway.migration.differences import entity_text as target_text
from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, DynamicQuotas, EntityQuota
from gateway.quotas.quota_table import QuotaTable

_SHORT_BURST_SECONDS: Final = 1


@dataclass(frozen=True, slots=True)
class GatewayQuotas:
    """The quotas of a config file or of a running gateway. `source` is its name in messages."""

    source: str
    enforce: bool
    rows: tuple[EntityQuota, ...]
    copies: int = 1
    """The number of processes that give every client its whole quota, because they share none."""

    at_each_broker: bool = False
    """True with `quotas.scope: broker`."""

    api: DynamicQuotas = field(default_factory=dict)
    """The part of `rows` that was set through Weir's quota API."""

    def by_entity(self) -> Mapping[ClientQuotaEntity, EntityQuota]:
        return {row.entity: row for row in self.rows}


def with_api_quotas(gateway: GatewayQuotas, api: DynamicQuotas) -> GatewayQuotas:
    """The quotas with those that were set through Weir's quota API, which override the config."""
    rows = dict(gateway.by_entity())
    for entity, limits in api.items():
        row = rows.get(entity, EntityQuota(entity))
        rows[entity] = replace(row, limits={**row.limits, **limits})
    return replace(gateway, rows=tuple(rows.values()), api=api)


def obstacles(translation: Translation, gateway: GatewayQuotas) -> list[str]:
    """The reasons why the lift would leave a client with more than its quota, each with its remedy."""
    found: list[str] = []
    if translation.moved and not gateway.enforce:
        found.append(
            f"{gateway.source}: quotas.enforce is false, so Weir would throttle no client after the lift — set it to true, or"
            " remove the key"
        )
    if translation.moved and gateway.copies > 1:
        found.append(
            f"{gateway.source}: sharing is missing or empty, so each of {gateway.copies} processes would give every client its"
            " whole limit — add 'sharing: {}', and restart Weir"
        )
    rows = gateway.by_entity()
    for quota in translation.moved:
        by_api = quota.key in gateway.api.get(quota.target, {})
        source = "Weir's quota API" if by_api else gateway.source
        problem = _obstacle(quota, rows.get(quota.target), translation.brokers, source)
        if problem is not None:
            found.append(f"{entity_text(quota.entity)}, {quota.key}: {problem}")
    return found


def _obstacle(quota: MovedQuota, row: EntityQuota | None, brokers: int | None, source: str) -> str | None:
    import_it = "add the row that `weir quotas import` prints"
    if row is None:
        return f"{source} has no row for this entity — {import_it}"
    if row.exempt:
        return f"{source} exempts this entity, and the brokers limit it — {import_it} in its place"
    limit = row.limits.get(quota.key)
    allowed = f"{number_text(quota.limit)} ({factor_text(quota, brokers)})"
    if limit is None:
        return f"{source} has a row for this entity without this key — set it to {allowed}, or less"
    if limit > quota.limit:
        down = "" if brokers is None else "; if some brokers are down, give the number of all brokers with --brokers"
        return f"{source} allows {number_text(limit)}, and the brokers allow {allowed} — lower it{down}"
    return None


def loosened(translation: Translation, rows: Iterable[EntityQuota]) -> list[str]:
    """Notes on rows of the config that override a default of the brokers: such a client gets more after the lift.

    An operator who wrote such a row may well want that, so the notes are no obstacles.
    """
    moved = limits_by_target(translation.moved)
    table = QuotaTable(
        [EntityQuota(entity, {key: quota.limit for key, quota in limits.items()}) for entity, limits in moved.items()]
    )
    keys = sorted({quota.key for quota in translation.moved})
    found: list[str] = []
    for row in rows:
        for key in keys:
            if key in moved.get(row.entity, {}):
                continue
            now = _limit_now(table, key, row.entity)
            if now is None:
                continue
            limit, origin = now
            mine = row.limits.get(key)
            if row.exempt or (mine is not None and mine > limit):
                gets = "is exempt from rates in the config" if mine is None else f"has {number_text(mine)} in the config"
                found.append(
                    f"{target_text(row.entity)}, {key}: it {gets}; today, {target_text(origin)} limits it to"
                    f" {number_text(limit)} at the brokers"
                )
    return found


def _limit_now(table: QuotaTable, key: str, entity: ClientQuotaEntity) -> tuple[float, ClientQuotaEntity] | None:
    """The limit that the brokers' less specific entities set for a row's clients, and the entity that sets it."""
    if isinstance(entity.ip, str):
        found = table.resolve_ip(key, entity.ip)
    elif entity.ip is None and entity.topic is None:
        user = "" if entity.user is None or entity.user is DEFAULT else str(entity.user)
        client_id = "" if entity.client_id is None or entity.client_id is DEFAULT else str(entity.client_id)
        found = table.resolve(key, user, client_id)
    else:
        return None
    return None if found.limit is None or found.entity is None else (found.limit, found.entity)


def burst_notes(samples: int, seconds: int) -> list[str]:
    """A note if Weir allows a client that the brokers have slowed down a burst of more than a second of its quota."""
    burst = (samples - 1) * seconds
    if burst <= _SHORT_BURST_SECONDS:
        return []
    remedy = "set quotas.window to {samples: 2, seconds: 1} until then, if that is too much"
    return [f"right after the lift, a client may use {burst} s of its quota at once, as after a pause — {remedy}"]


def listed(moved: Sequence[MovedQuota], brokers: int | None, gateway: GatewayQuotas) -> list[str]:
    """One line for each quota that the lift removes: the brokers' rate beside Weir's."""
    rows = gateway.by_entity()
    lines = []
    for quota in moved:
        row = rows.get(quota.target)
        limit = None if row is None else row.limits.get(quota.key)
        mine = "none" if limit is None else number_text(limit)
        lines.append(f"{entity_text(quota.entity)}: {quota.key} {factor_text(quota, brokers)}; {gateway.source}: {mine}")
    return lines
