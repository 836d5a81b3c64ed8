"""The queue of alterations that clients request. `features.quota_api` carries them out, one after the other."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from gateway.alterations import NO_QUOTA_ADMIN, Alteration, MadeChange
from gateway.quotas.entity import ANONYMOUS, ClientQuotaEntity, DynamicQuotas
from protocol.bodies.client_quotas import AlterRequest, EntityPart

BROKER_ACLS: Final = "broker_acls"

QuotaAdmins = tuple[str, ...] | Literal["broker_acls"]
"""The principals that may request a change, such as `User:admin`. `BROKER_ACLS`: the brokers' own ACLs decide."""

QuotaName = tuple[ClientQuotaEntity, str]
"""An entity and a quota key."""


class AlterRules(Protocol):
    """The rules for the alteration of one type of entities."""

    def alteration(self, request: AlterRequest) -> Alteration: ...

    def check(self, before: DynamicQuotas, after: DynamicQuotas) -> None:
        """Raise QuotaApiError if the quotas of the API may not change from `before` to `after`."""
        ...


@dataclass(eq=False, slots=True)
class AlterTask:
    """A request in the queue. `done` is called after the `alteration` is saved and in effect, or has failed.

    `made` has its changes by entity and key. `rules` is None for a request of the quota API itself.
    """

    request: AlterRequest
    user: str
    done: Callable[[], None]
    rules: AlterRules | None = None
    alteration: Alteration | None = None
    made: dict[QuotaName, MadeChange] = field(default_factory=dict)


class AlterQueue:
    """Requests of clients, changes to undo, and quotas that another gateway has set. Each new entry sets `arrived`.

    A change stays in `undos` until it is undone, whatever fails before.
    """

    def __init__(self, admins: QuotaAdmins = ()) -> None:
        self.admins: QuotaAdmins = admins
        self.arrived = asyncio.Event()
        self.followed: DynamicQuotas | None = None
        self.undos: list[tuple[AlterTask, list[MadeChange]]] = []
        self._tasks: list[AlterTask] = []

    def allows(self, user: str) -> bool | None:
        """True if the user may request a change. None: ask the broker (`AlterRight`)."""
        return None if self.admins == BROKER_ACLS else f"User:{user}" in self.admins

    def alter(
        self, request: AlterRequest, user: str, done: Callable[[], None], *, rules: AlterRules | None = None
    ) -> AlterTask:
        """Add a request. The caller has checked the user's rights. `done` is called after the request is carried out."""
        task = AlterTask(request, user, done, rules)
        self._tasks.append(task)
        self.arrived.set()
        return task

    def undo(self, task: AlterTask, entity: tuple[EntityPart, ...]) -> None:
        """Undo the changes of an entity, because the broker has refused its part of the request."""
        if task.alteration is None or task.request.validate_only:
            return
        if changes := task.alteration.changes_of(entity):  # none of a key that only the broker knows
            self.undos.append((task, [task.made[change.entity, change.key] for change in changes]))
            self.arrived.set()

    def follow(self, quotas: DynamicQuotas) -> None:
        """Apply these quotas soon, because another gateway has changed the store."""
        self.followed = quotas
        self.arrived.set()

    def take(self) -> list[AlterTask]:
        """Remove and return the requests."""
        tasks, self._tasks = self._tasks, []
        return tasks


def denied(user: str) -> str:
    """The message for a client that is no quota admin."""
    text = f"Cluster authorization failed: User:{user} {NO_QUOTA_ADMIN}"
    if user != ANONYMOUS:
        return f"{text} Add it to that list, or use quota_admins: {BROKER_ACLS}."
    # The obvious remedy would give the quotas to every Kerberos user.
    return f"{text} It stands for all clients without a name. If clients log in by Kerberos, use quota_admins: {BROKER_ACLS}."
