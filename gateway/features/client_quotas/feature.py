"""Applies the section `quotas` to the engine: entities, enforcement, algorithms and windows."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from gateway import clock
from gateway.background import BackgroundTasks
from gateway.config.model import QuotasConfig
from gateway.config.section import WindowConfig
from gateway.events import QuotaChanged
from gateway.feature import Feature
from gateway.log import first_lines
from gateway.observer import LimitChange, Outlet, limit_changes
from gateway.quotas.engine import QuotaEngine
from gateway.quotas.entity import DynamicQuotas, EntityQuota
from gateway.quotas.kinds.controller_mutation import KIND as CONTROLLER_MUTATIONS
from gateway.quotas.meter import Window
from gateway.quotas.quota_table import TableChange
from gateway.quotas.scope import BROKER
from gateway.quotas.settings import Metering, QuotaSettings

_LOOK_SECONDS: Final = 60.0
_SHORTEST_SECONDS: Final = 0.01

_log = logging.getLogger("weir.quotas")


@dataclass(frozen=True, slots=True)
class _ByClock:
    """The rows that end or begin to count, as lines for the log, and all rows with an `until`. Nothing for a reload."""

    lines: Sequence[str] = ()
    grants: Sequence[EntityQuota] = ()


@dataclass(frozen=True, slots=True)
class _Step:
    """The change from the rows of `before` to the rows of `section` at the time `at` (UTC).

    The same rows count until `change`. None: for ever.
    """

    section: QuotasConfig
    at: datetime
    before: QuotasConfig
    effective: QuotasConfig
    change: datetime | None
    settings: QuotaSettings
    tables: Sequence[TableChange]
    events: Sequence[QuotaChanged]
    overruled: Sequence[str]
    by_clock: _ByClock

    def holds(self, section: QuotasConfig, before: QuotasConfig, dynamic: DynamicQuotas, now: datetime) -> bool:
        """True if the step leads from `before` to the rows of `section` that count now."""
        if self.section is not section or self.before is not before or self.settings.dynamic is not dynamic:
            return False
        return self.at <= now and (self.change is None or now < self.change)


class ClientQuotas(Feature[QuotasConfig]):
    """`reconsider` is called after a change, so that sessions compute their throttle times again.

    A task puts temporary rows into effect by the wall clock. It looks at least every minute, because that clock may jump.
    """

    def __init__(
        self,
        section: QuotasConfig,
        engine: QuotaEngine,
        outlet: Outlet,
        reconsider: Callable[[], None],
        now: Callable[[], datetime] = clock.utc,
        beside: Callable[[], None] = lambda: None,
    ) -> None:
        """`now` is the wall clock in UTC. A thread calls `beside` before other temporary rows count."""
        self._section = section
        self._engine = engine
        self._outlet = outlet
        self._reconsider = reconsider
        self._now = now
        self._beside = beside
        self._reloaded = asyncio.Event()
        self._prepared: _Step | None = None
        self._equal: QuotasConfig | None = None  # a section that is equal to the one in effect
        self._at = now()
        self._effective, self._change = section.at(self._at)
        if quota_settings(self._effective) != engine.settings:  # other rows count since the engine was made
            self._put(self._step_to(section, self._at), self._at)

    def start(self, tasks: BackgroundTasks) -> None:
        self._task = tasks.start("follow temporary quotas", self._follow)

    def prepare(self, section: QuotasConfig) -> None:
        """With thousands of rows, a step takes too long for the event loop."""
        if section == self._section:
            self._equal = section
        else:
            self._prepared = self._step_to(section, self._now())

    def apply(self, section: QuotasConfig) -> list[str]:
        """The quotas that were set through the API stay in effect."""
        now = self._now()
        self.look(now)  # changes by the clock are not those of the file
        step, equal = self._prepared_to(section, now), self._equal
        self._equal = None
        if step is None and (section is equal or section == self._section):
            self._section = section  # a row may be on another line of the file
            return []
        step = step or self._step_to(section, now)
        self._put(step, now)
        self._reloaded.set()
        self._report(step)
        return list(step.overruled)

    def look(self, now: datetime) -> None:
        """Put the rows into effect that count now, if they are not those of the last look."""
        due, since, self._at = self._due(now), self._at, now
        if not due:
            return
        step = self._prepared_to(self._section, now) or self._step_to(self._section, now)
        if lines := step.by_clock.lines:
            self._put(step, now)
            _log.info("other quotas count now: %s", "; ".join([*lines, *first_lines(step.overruled)]))
            self._report(step)
        self._change = step.change
        for row in step.by_clock.grants:
            until = None if row.when is None else row.when.until
            if until is not None and since < until <= now:
                self._outlet.grant_expired(row.entity, until)

    def _due(self, now: datetime) -> bool:
        return now < self._at or (self._change is not None and self._change <= now)

    async def _follow(self) -> None:
        while True:
            now = self._now()
            if self._due(now):
                with suppress(RuntimeError):  # no thread can be started: `look` computes the step itself
                    self._prepared = await asyncio.to_thread(self._step_in_thread, now)
            self.look(self._now())
            self._reloaded.clear()
            left = _LOOK_SECONDS if self._change is None else (self._change - self._now()).total_seconds()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(max(left, _SHORTEST_SECONDS), _LOOK_SECONDS)):
                    await self._reloaded.wait()

    def _step_in_thread(self, now: datetime) -> _Step:
        step = self._step_to(self._section, now)
        self._beside()
        return step

    def _step_to(self, section: QuotasConfig, now: datetime) -> _Step:
        before, dynamic = self._effective, self._engine.settings.dynamic
        effective, change = section.at(now)
        settings = replace(quota_settings(effective), dynamic=dynamic)
        if settings.groups == (groups := self._engine.settings.groups):
            settings = replace(settings, groups=groups)  # equal groups are then the same ones, which `apply` finds at once
        rows = effective.rows
        limits = limit_changes(before.rows, rows)
        clock_only = section is self._section
        return _Step(
            section,
            now,
            before,
            effective,
            change,
            settings,
            self._engine.prepare(settings),
            self._outlet.quota_events(limits, "schedule" if clock_only else "file"),
            overruled(limits, dynamic),
            _by_clock(before.rows, rows, section.rows) if clock_only else _ByClock(),
        )

    def _prepared_to(self, section: QuotasConfig, now: datetime) -> _Step | None:
        step, self._prepared = self._prepared, None
        if step is not None and step.holds(section, self._effective, self._engine.settings.dynamic, now):
            return step
        return None

    def _report(self, step: _Step) -> None:
        for event in step.events:
            self._outlet.notify(event)

    def _put(self, step: _Step, now: datetime) -> None:
        self._section, self._at, self._effective, self._change = step.section, now, step.effective, step.change
        self._engine.max_buckets = step.section.max_entities
        self._engine.apply(step.settings, clock.monotonic(), step.tables)
        self._reconsider()


def _by_clock(before: Sequence[EntityQuota], after: Sequence[EntityQuota], every: Sequence[EntityQuota]) -> _ByClock:
    lines = [f"{_row(row)} does not count any more" for row in _without(before, after)]
    lines += [f"{_row(row)} counts now" for row in _without(after, before)]
    return _ByClock(first_lines(lines), [row for row in every if row.when is not None and row.when.until is not None])


def _without(rows: Sequence[EntityQuota], others: Sequence[EntityQuota]) -> list[EntityQuota]:
    """The rows that `others` lacks, in linear time: at most one row of each identity counts at a time."""
    known = {row.identity: row for row in others}
    return [row for row in rows if known.get(row.identity) != row]


def _row(row: EntityQuota) -> str:
    return f"the row of {row}" + ("" if row.line is None else f" on line {row.line}") + f" ({row.when or 'without a time'})"


def quota_settings(section: QuotasConfig) -> QuotaSettings:
    return QuotaSettings(
        quotas=section.rows,
        groups=section.groups,
        by_broker=section.scope == BROKER,
        enforce=section.enforce,
        algorithm=section.algorithm,
        window=_window(section.window),
        metering={
            CONTROLLER_MUTATIONS.name: Metering(
                section.mutations.algorithm, _window(section.mutations.window or section.window)
            )
        },
    )


def overruled(changes: Iterable[LimitChange], dynamic: DynamicQuotas) -> list[str]:
    """Notes about changed limits of the file without effect, because the API has set the same key of the same entity."""
    return [
        f"{entity}: {key} stays {dynamic[entity][key]:.12g}, because this value was set through the API: to use the"
        f" file's {limit:.12g}, remove the API's value (kafka-configs.sh --alter --delete-config {key})"
        for entity, key, _, limit in changes
        if limit is not None and key in dynamic.get(entity, {})
    ]


def _window(config: WindowConfig) -> Window:
    return Window(config.samples, float(config.seconds))
