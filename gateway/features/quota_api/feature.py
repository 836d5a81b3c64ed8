"""Connects the quota API to the engine, the store of its quotas, and the readiness of the gateway."""

import asyncio
from collections.abc import Callable, Container, Mapping

from gateway import clock
from gateway.alter_queue import AlterQueue, QuotaAdmins
from gateway.background import BackgroundTasks
from gateway.cluster.metadata import OwnClient
from gateway.feature import Feature
from gateway.features.quota_api.descriptions import DescribeQueue
from gateway.features.quota_api.handlers import handler_factories
from gateway.features.quota_api.metrics import METRICS, QuotaTopicReport
from gateway.features.quota_api.quota_admin import QuotaAdmin
from gateway.features.quota_api.quota_topic import QuotaTopic
from gateway.features.quota_api.state_file import StateFile
from gateway.observer import Outlet
from gateway.proxy.handler import HandlerFactory
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DynamicQuotas

PATIENCE_SECONDS = 10.0
"""The gateway waits for the topic for at most this time before it is ready with the copy in the state file."""


class QuotaApi(Feature[QuotaAdmins]):
    """Stores the quotas in a state file. With `sharing`, a topic has the quotas, and the file is a copy of the topic."""

    metrics = METRICS

    def __init__(
        self,
        file: StateFile,
        topic: str | None,
        connect: Callable[[], OwnClient],
        engine: QuotaEngine,
        queue: AlterQueue,
        outlet: Outlet,
        *,
        writes_copy: Callable[[], bool],
        groups: Callable[[], Container[str | None]],
        on_quotas: Callable[[DynamicQuotas], None],
        applied: Callable[[], None],
    ) -> None:
        """`topic` is None if only the file keeps the quotas. `writes_copy`: this process writes the copy of the topic.

        `groups`, `on_quotas` and `applied` are passed to `QuotaAdmin`.
        """
        self._topic = None if topic is None else QuotaTopic(topic, connect, file, queue.follow, writes_copy=writes_copy)
        self._waiting_since: float | None = None
        self._queue = queue
        self._descriptions = DescribeQueue()
        self.admin = QuotaAdmin(engine, self._topic or file, queue, outlet, groups=groups, on_quotas=on_quotas, applied=applied)

    def handlers(self) -> Mapping[int, HandlerFactory]:
        return handler_factories(self._queue, self.admin.describe, self._descriptions.add)

    async def restore(self) -> None:
        await self.admin.start()

    def start(self, tasks: BackgroundTasks) -> None:
        self._task = tasks.start("quotas of the API", self._run)

    def apply(self, section: QuotaAdmins) -> list[str]:
        """`section` is `quota_admins`."""
        self._queue.admins = section
        return []

    async def stop(self) -> None:
        await super().stop()
        if self._topic is not None:
            await self._topic.stop()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.admin.run(), name="change quotas")
            group.create_task(self._descriptions.run(), name="describe quotas")
            if self._topic is not None:
                group.create_task(self._topic.run(), name="follow the quotas of the API")

    def not_ready(self) -> str | None:
        if self._topic is None or self._topic.whole:
            return None
        now = clock.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since > PATIENCE_SECONDS:
            return None
        return f"the quotas of the API are not read yet from topic {self._topic.topic}"

    def report(self) -> QuotaTopicReport | None:
        return None if self._topic is None else self._topic.report()
