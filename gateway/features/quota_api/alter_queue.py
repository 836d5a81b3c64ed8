"""The queue of quota changes that `QuotaAdmin` carries out. All parts of Weir that request changes share one queue."""

import asyncio
from collections.abc import Callable, Iterable

from gateway.alterations import AlterRules, AlterTask, Change
from gateway.quotas.entity import DynamicQuotas
from protocol.bodies.client_quotas import AlterRequest, EntityPart


class AlterQueue:
    """Requests of clients, changes to undo, and quotas that another gateway has set. Each new entry sets `arrived`.

    `admins` are the principals that may request a change, such as `User:admin`.
    """

    def __init__(self, admins: Iterable[str] = ()) -> None:
        self.admins = frozenset(admins)
        self.arrived = asyncio.Event()
        self.followed: DynamicQuotas | None = None
        self.undos: list[tuple[AlterTask, list[Change]]] = []
        self._tasks: list[AlterTask] = []

    def allows(self, user: str) -> bool:
        return f"User:{user}" in self.admins

    def alter(
        self, request: AlterRequest, user: str, done: Callable[[], None], *, rules: AlterRules | None = None
    ) -> AlterTask:
        """Add a request. The caller has checked the user's rights. `done` is called after the request is carried out."""
        task = AlterTask(request, user, done, rules=rules)
        self._tasks.append(task)
        self.arrived.set()
        return task

    def undo(self, task: AlterTask, entity: tuple[EntityPart, ...]) -> None:
        """Undo the changes of an entity, because the broker has refused its part of the request."""
        if task.alteration is not None and not task.request.validate_only:
            self.undos.append((task, task.alteration.changes_of(entity)))
            self.arrived.set()

    def follow(self, quotas: DynamicQuotas) -> None:
        """Apply these quotas soon, because another gateway has changed the store."""
        self.followed = quotas
        self.arrived.set()

    def take_tasks(self) -> list[AlterTask]:
        tasks, self._tasks = self._tasks, []
        return tasks

    def take_undos(self) -> list[tuple[AlterTask, list[Change]]]:
        undos, self.undos = self.undos, []
        return undos
