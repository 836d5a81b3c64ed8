"""Everything but throttles and usage, made into events: changes of quotas and configuration, volumes, turned away clients."""

from collections.abc import Callable, Iterable, Iterator

from gateway.config.effective import ReloadResult
from gateway.events import ConfigApplied, ConnectionRejected, Event, QuotaChanged, VolumeStateChanged
from gateway.features.volume_quotas.rules import Verdict
from gateway.quotas.entity import ClientQuotaEntity, Default, EntityName, EntityQuota
from gateway.quotas.kinds import KINDS

MAX_REJECTIONS = 10_000
"""Different reasons, addresses and listeners between two flushes; what comes past that is counted as dropped."""

_KIND_OF = {kind.config_key: kind.name for kind in KINDS.values()}


class Notes:
    """Tells the ledger, `note`, of what happens. `wall` gives seconds since 1970, `gateway` is this one's name."""

    def __init__(self, gateway: str, note: Callable[[Event], None], wall: Callable[[], float]) -> None:
        self._gateway = gateway
        self._note = note
        self._wall = wall
        self._rejections: dict[tuple[str, str, str], tuple[int, int, int]] = {}
        self.dropped = 0

    def reloaded(self, result: ReloadResult, version: int) -> None:
        """A changed file was taken over or refused; `version` is that of the configuration in effect now."""
        self._note(
            ConfigApplied(
                time_ms=int(result.at * 1000),
                gateway=self._gateway,
                result="success" if result.success else "failure",
                config_version=str(version),
                changes=result.changes or tuple(map(str, result.problems)),
            )
        )

    def file_changed(self, before: Iterable[EntityQuota], after: Iterable[EntityQuota]) -> None:
        """The file's quotas are others now."""
        for entity, key, old, new in changes(before, after):
            self.quota_changed(entity, key, old, new, None)

    def quota_changed(
        self, entity: ClientQuotaEntity, key: str, old: float | None, new: float | None, principal: str | None
    ) -> None:
        """A limit (units per second; None: there is none) was changed by a principal through the API, or by the file."""
        kind = _KIND_OF.get(key)
        if kind is None or old == new:
            return
        self._note(
            QuotaChanged(
                time_ms=self._now(),
                gateway=self._gateway,
                kind=kind,
                quota=str(entity),
                user=_name(entity.user),
                client_id=_name(entity.client_id),
                ip=_name(entity.ip),
                old_limit=old,
                new_limit=new,
                source="file" if principal is None else "api",
                principal=principal,
            )
        )

    def volumes_changed(self, before: Verdict, now: Verdict, enforced: bool) -> None:
        """The volume quota went to another state, its factor changed by much, or it is `enforced` now, or no more."""
        worst = now.worst
        self._note(
            VolumeStateChanged(
                time_ms=self._now(),
                gateway=self._gateway,
                state=now.state.value,
                previous=before.state.value,
                factor=now.factor,
                reason=now.reason,
                broker=None if worst is None else worst.broker,
                volume=None if worst is None else worst.volume.name,
                capacity_bytes=None if worst is None else worst.volume.capacity,
                consumed_bytes=None if worst is None else worst.volume.consumed,
                enforced=enforced,
            )
        )

    def rejected(self, reason: str, address: str, listener: str) -> None:
        """A connection was refused or closed by a limit. Folded until `take_rejections`."""
        now, key = self._now(), (reason, address, listener)
        first, _, count = self._rejections.get(key, (now, now, 0))
        if count == 0 and len(self._rejections) >= MAX_REJECTIONS:
            self.dropped += 1
        else:
            self._rejections[key] = (first, now, count + 1)

    def take_rejections(self) -> Iterator[ConnectionRejected]:
        """The events of the interval that is over."""
        rejections, self._rejections = self._rejections, {}
        for (reason, address, listener), (first, last, count) in rejections.items():
            yield ConnectionRejected(
                time_ms=first,
                last_ms=last,
                gateway=self._gateway,
                reason=reason,
                address=address or None,
                listener=listener or None,
                count=count,
            )

    def _now(self) -> int:
        return int(self._wall() * 1000)


def changes(
    before: Iterable[EntityQuota], after: Iterable[EntityQuota]
) -> Iterator[tuple[ClientQuotaEntity, str, float | None, float | None]]:
    """What differs between two lists of quotas: entity, key, the limit before and the one after."""
    old = {(row.entity, key): limit for row in before for key, limit in row.limits.items()}
    new = {(row.entity, key): limit for row in after for key, limit in row.limits.items()}
    for entity, key in dict.fromkeys((*old, *new)):
        one, two = old.get((entity, key)), new.get((entity, key))
        if one != two:
            yield entity, key, one, two


def _name(name: EntityName) -> str | None:
    return name.value if isinstance(name, Default) else name
