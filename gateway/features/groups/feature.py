"""Divides the capacities that groups share, and reports the division.

With `sharing`, the gateways divide together, see `features/sharing`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway import clock
from gateway.background import BackgroundTasks
from gateway.feature import Feature
from gateway.features.groups.metrics import METRICS, GroupsReport
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.group_buckets import INTERVAL_SECONDS, GroupShareRow
from gateway.quotas.kinds import KINDS
from gateway.steps import Steps

_IDLE_SECONDS: Final = 1.0
"""The time after which to look again for groups that share a capacity."""


class Groups(Feature[None]):
    """`shared`: another feature divides together with other gateways. `reconsider` makes sessions compute their throttle times
    again."""

    page = "groups"
    metrics = METRICS

    def __init__(self, engine: QuotaEngine, reconsider: Callable[[], None], *, shared: bool) -> None:
        self._engine = engine
        self._reconsider = reconsider
        self._shared = shared

    def start(self, tasks: BackgroundTasks) -> None:
        if not self._shared:
            self._task = tasks.start("divide the capacities of groups", self._run)

    def tick(self, now: float) -> Steps[None]:  # noqa: ARG002
        """Shorten the mutes of groups that got a larger share since."""
        if self._engine.group_buckets.raised:
            self._engine.group_buckets.raised = False
            self._reconsider()
        yield

    async def _run(self) -> None:
        groups = self._engine.group_buckets
        while True:
            if groups.active:
                now = clock.monotonic()
                groups.divide(groups.measure(now), INTERVAL_SECONDS, now)
            await asyncio.sleep(INTERVAL_SECONDS if groups.active else _IDLE_SECONDS)

    def report(self) -> GroupsReport:
        return GroupsReport(tuple(self._engine.group_buckets.rows(clock.monotonic())))

    def as_json(self, report: GroupsReport) -> dict[str, Any]:
        """`configured` is False if no groups share a capacity. The lists are there all the same, for scripts."""
        rows = [_as_json(row) for row in report.rows]
        return {"configured": len(rows) > 0, "groups": rows}


def _as_json(row: GroupShareRow) -> Mapping[str, object]:
    return {
        "kind": row.kind,
        "unit": KINDS[row.kind].limit_unit,
        "group": row.group,
        "parent": row.parent,
        "level": row.level,
        "weight": row.weight,
        "guarantee": row.guarantee,
        "ceiling": row.ceiling,
        "entitlement": row.entitlement,
        "allocation": row.allocation,
        "use": row.use,
        "borrowed": row.borrowed,
        "lent": row.lent,
        "wants_more": row.wants_more,
    }
