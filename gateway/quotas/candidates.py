"""The configured values that match a client, most specific first: the one that applies, and why the others do not."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.quotas.entity import DEFAULT, ClientQuotaEntity, DynamicQuotas, EntityQuota, Resolution, Source
from gateway.quotas.quota_table import QuotaTable, client_levels, user_levels

OVERRIDDEN: Final = "the quota API's value for the same entity overrides the file's"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One value that matches the client: a limit per second, or an exemption (`limit` None).

    `reason` says why the value does not apply; it is empty if the value applies.
    """

    entity: ClientQuotaEntity
    limit: float | None
    source: Source
    applies: bool
    reason: str


class CandidateTable:
    """The values of the config file and of the quota API, kept apart, and the table that joins them."""

    def __init__(self, file: Sequence[EntityQuota], dynamic: DynamicQuotas) -> None:
        self.quotas: Final = QuotaTable(file, dynamic)
        self._file: Mapping[ClientQuotaEntity, EntityQuota] = {quota.entity.shortened(): quota for quota in file}
        self._dynamic: DynamicQuotas = {entity.shortened(): limits for entity, limits in dynamic.items()}

    def of_client(self, key: str, user: str, client_id: str) -> tuple[Resolution, list[Candidate]]:
        """The quota `key` of a client, and all values that match the client, most specific first."""
        resolution = self.quotas.resolve(key, user, client_id)
        return resolution, self._candidates(key, [entity for entity, _ in client_levels(user, client_id)], resolution)

    def of_user(self, key: str, user: str) -> tuple[Resolution, list[Candidate]]:
        """The limit `key` of a whole user, and all values that match it."""
        resolution = self.quotas.resolve_user(key, user)
        return resolution, self._candidates(key, [entity for entity, _ in user_levels(user)], resolution)

    def of_group(self, key: str, group: str) -> tuple[Resolution, list[Candidate]]:
        """The ceiling `key` of a group, and its values in the file and the quota API."""
        resolution = self.quotas.resolve_group(key, group)
        return resolution, self._candidates(key, [ClientQuotaEntity(group=group)], resolution)

    def of_address(self, key: str, ip: str) -> tuple[Resolution, list[Candidate]]:
        """The quota `key` of an address, and all values that match it."""
        resolution = self.quotas.resolve_ip(key, ip)
        entities = [ClientQuotaEntity(ip=ip), ClientQuotaEntity(ip=DEFAULT)]
        return resolution, self._candidates(key, entities, resolution)

    def exempting(self, name: str, user: str, client_id: str) -> EntityQuota | None:
        """The most specific row that exempts the client from topic or volume quotas (`TOPICS`, `VOLUMES`)."""
        rows = (self._file.get(entity) for entity, _ in client_levels(user, client_id))
        return next((row for row in rows if row is not None and name in row.exempt_from), None)

    def _candidates(self, key: str, entities: Iterable[ClientQuotaEntity], resolution: Resolution) -> list[Candidate]:
        found: list[Candidate] = []
        winner = resolution.entity
        passed = False
        for entity in entities:
            row = self._file.get(entity)
            api = self._dynamic.get(entity, {}).get(key)
            file = None if row is None else row.limits.get(key)
            exempt = row is not None and row.exempt
            wins = entity == winner
            reason = "" if wins else _overruled(winner, passed=passed, exempt=resolution.exempt)
            if api is not None:
                found.append(Candidate(entity, api, Source.API, wins, reason))
                reason = OVERRIDDEN
            if file is not None:
                found.append(Candidate(entity, file, Source.FILE, wins and api is None, reason))
            if exempt:
                found.append(Candidate(entity, None, Source.FILE, wins and api is None, reason))
            passed = passed or wins
        return found


def _overruled(winner: ClientQuotaEntity | None, *, passed: bool, exempt: bool) -> str:
    """The reason for a value of another entity than the winner's."""
    if passed or not exempt:
        return f"less specific than {winner}"
    return f"a default limit, and the exemption of {winner} names its client"
