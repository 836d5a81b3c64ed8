"""Changes of quotas that wait for `QuotaAdmin`. The parts of Weir that begin a change, and QuotaAdmin, share one queue."""

import asyncio
from collections.abc import Callable, Iterable

from gateway.alterations import AlterRules, AlterTask, Change
from gateway.quotas.entity import DynamicQuotas
from protocol.bodies.client_quotas import AlterRequest, EntityPart


class AlterQueue:
    """Requests of clients, changes to take back, and quotas that another gateway has set. `arrived` is set for all of them.

    `admins` are the principals that may begin a change, such as `User:admin`.
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
        """Begin a request, whose user has been checked. `done` is called when it has been carried out."""
        task = AlterTask(request, user, done, rules=rules)
        self._tasks.append(task)
        self.arrived.set()
        return task

    def undo(self, task: AlterTask, entity: tuple[EntityPart, ...]) -> None:
        """Take back the changes of an entity, as the broker has refused its part of the request."""
        if task.alteration is not None and not task.request.validate_only:
            self.undos.append((task, task.alteration.changes_of(entity)))
            self.arrived.set()

    def follow(self, quotas: DynamicQuotas) -> None:
        """Put these quotas into effect soon: another gateway has changed the store."""
        self.followed = quotas
        self.arrived.set()

    def take_tasks(self) -> list[AlterTask]:
        tasks, self._tasks = self._tasks, []
        return tasks

    def take_undos(self) -> list[tuple[AlterTask, list[Change]]]:
        undos, self.undos = self.undos, []
        return undos
