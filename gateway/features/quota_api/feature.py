"""Quotas of the API put together: who answers for them, where they are kept, whether they are known yet."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway import clock
from gateway.cluster.client import OwnClient
from gateway.config.model import WeirConfig
from gateway.features.quota_api.alter_queue import AlterQueue
from gateway.features.quota_api.quota_admin import QuotaAdmin
from gateway.features.quota_api.quota_topic import QuotaLog
from gateway.features.quota_api.records import QuotaLogReport
from gateway.features.quota_api.state_file import StateFile
from gateway.files.file_lock import FileLock
from gateway.observer import Outlet
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DynamicQuotas, EntityQuota
from gateway.workers.worker import Worker

PATIENCE_SECONDS = 10.0
"""So long a gateway that could serve keeps clients away for want of the topic; then what it knew last has to do."""


class ApiQuotas:
    """In a state file, or with `sharing` in a topic, of which the file is a copy."""

    def __init__(
        self,
        config: WeirConfig,
        path: Path,
        connect: Callable[[], OwnClient],
        engine: QuotaEngine,
        queue: AlterQueue,
        outlet: Outlet,
        on_quotas: Callable[[DynamicQuotas], None],
        applied: Callable[[], None],
        worker: Worker | None,
        lock: FileLock | None,
    ) -> None:
        """`path` is the config file's; `applied` is called whenever the quotas in effect have changed.

        `lock` is the state file's; None for a worker, whose supervisor has it.
        """
        file = StateFile(config.state.file(path), lock)
        self._log: QuotaLog | None = None
        self._waiting_since: float | None = None
        if config.sharing is not None:
            writes_copy = worker is None or worker.number == 0  # all workers have one file
            self._log = QuotaLog(config.sharing.quotas_topic, connect, file, queue.follow, writes_copy=writes_copy)
        self.admin = QuotaAdmin(engine, self._log or file, queue, outlet, on_quotas=on_quotas, applied=applied)

    async def run(self) -> None:
        """Carry out requests, and follow the topic, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.admin.run(), name="change quotas")
            if self._log is not None:
                group.create_task(self._log.run(), name="follow the quotas of the API")

    def not_ready(self) -> str | None:
        """Why a gateway that is ready but for this should not be sent clients."""
        if self._log is None or self._log.whole:
            return None
        now = clock.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since > PATIENCE_SECONDS:
            return None
        return f"the quotas of the API are not read yet: topic {self._log.topic}"

    def report(self) -> QuotaLogReport | None:
        """How the topic does; None where there is none."""
        return None if self._log is None else self._log.report()


def overruled(old: Sequence[EntityQuota], new: Sequence[EntityQuota], dynamic: DynamicQuotas) -> list[str]:
    """What has changed in the file and has no effect, because the API's quota holds for the same entity and key."""
    before = {quota.entity: quota.limits for quota in old}
    return [
        f"{quota.entity}: {key} stays {dynamic[quota.entity][key]:.12g}, which was set through the API: for the file's "
        f"{limit:.12g}, remove that (kafka-configs.sh --alter --delete-config {key})"
        for quota in new
        for key, limit in quota.limits.items()
        if before.get(quota.entity, {}).get(key) != limit and key in dynamic.get(quota.entity, {})
    ]
