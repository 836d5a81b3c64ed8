"""The one outlet of events. Parts of the gateway pass events to the `Outlet`, which passes each event to all observers.

The observers are the counters of the metrics and, where it is configured, the ledger. Throttles take another way: they are too
many, so a `Recorder` folds them before they become events.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from gateway import clock
from gateway.events import ConnectionRejected, Event, GrantExpired, QuotaChanged
from gateway.quotas.entity import ClientQuotaEntity, Default, EntityName, EntityQuota
from gateway.quotas.kinds import KINDS

_KIND_OF: Final = {kind.config_key: kind.name for kind in KINDS.values()}


class LimitChange(NamedTuple):
    """Another limit of an entity, in units per second. None: no limit."""

    entity: ClientQuotaEntity
    key: str
    old: float | None
    new: float | None


def limit_changes(before: Iterable[EntityQuota], after: Iterable[EntityQuota]) -> list[LimitChange]:
    """The limits that differ between two versions of `quotas.entities`."""
    old, new = ({(row.entity, key): limit for row in rows for key, limit in row.limits.items()} for rows in (before, after))
    return [
        LimitChange(entity, key, old.get((entity, key)), new.get((entity, key)))
        for entity, key in dict.fromkeys((*old, *new))
        if old.get((entity, key)) != new.get((entity, key))
    ]


class Observer(Protocol):
    """Takes note of events. Called in the event loop, so it returns at once, and it raises nothing."""

    def notify(self, event: Event) -> None:
        """Take note of an event."""
        ...


class Outlet:
    """Passes events to `observers`, in their order. `gateway` is this gateway's name in events; `wall` gives epoch seconds."""

    def __init__(self, gateway: str = "", observers: Iterable[Observer] = (), wall: Callable[[], float] = clock.wall) -> None:
        self.gateway = gateway
        self._observers = list(observers)
        self._wall = wall

    def observe(self, observer: Observer) -> None:
        """Pass all later events to `observer` as well."""
        self._observers.append(observer)

    def now_ms(self) -> int:
        return int(self._wall() * 1000)

    def notify(self, event: Event) -> None:
        for observer in self._observers:
            observer.notify(event)

    def connection_rejected(self, reason: str, address: str = "", listener: str = "", user: str = "") -> None:
        """`address` (without its port) and `listener` are empty where they are not known, `user` where no user was refused."""
        now = self.now_ms()
        self.notify(
            ConnectionRejected(
                time_ms=now,
                last_ms=now,
                gateway=self.gateway,
                reason=reason,
                address=address or None,
                listener=listener or None,
                user=user or None,
            )
        )

    def quota_events(
        self, changes: Iterable[LimitChange], source: str = "file", principal: str | None = None
    ) -> list[QuotaChanged]:
        """The events of changed limits. The caller passes them to `notify`. A thread may make thousands of them.

        The file has no `principal`. Keys of no quota kind are ignored.
        """
        now = self.now_ms()
        return [
            QuotaChanged(
                time_ms=now,
                gateway=self.gateway,
                kind=kind,
                quota=str(entity),
                user=_name(entity.user),
                client_id=_name(entity.client_id),
                ip=_name(entity.ip),
                group=_name(entity.group),
                old_limit=old,
                new_limit=new,
                source=source,
                principal=principal,
            )
            for entity, key, old, new in changes
            if (kind := _KIND_OF.get(key)) is not None and old != new
        ]

    def limit_changed(
        self,
        entity: ClientQuotaEntity,
        key: str,
        old: float | None,
        new: float | None,
        principal: str,
    ) -> None:
        """Report a limit that the API has changed. Limits are units per second, None for no limit."""
        for event in self.quota_events([LimitChange(entity, key, old, new)], "api", principal):
            self.notify(event)

    def grant_expired(self, entity: ClientQuotaEntity, until: datetime) -> None:
        """Report that the time of an entity's row is over."""
        self.notify(
            GrantExpired(
                time_ms=int(until.timestamp() * 1000),
                gateway=self.gateway,
                quota=str(entity),
                user=_name(entity.user),
                client_id=_name(entity.client_id),
                ip=_name(entity.ip),
                group=_name(entity.group),
            )
        )


def _name(name: EntityName) -> str | None:
    return name.value if isinstance(name, Default) else name
